"""sparsity.json from strangers: every field is checked, and what is wrong is named in one line."""

import json

import pytest
from support.stamped import edit_json, save_stamped

from hf_cyclical import PruningError
from hf_cyclical.formats import METADATA_NAME, read_metadata


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    return save_stamped("cifar_resnet8", tmp_path_factory.mktemp("model"))


def put(path, value):
    def change(content):
        *where, last = path.split(".")
        for key in where:
            content = content[int(key) if key.isdigit() else key]
        content[last] = value

    return change


HASH = "0" * 64


class TestReading:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (
                put("schema", "hf_cyclical/sparsity@2"),
                "schema 'hf_cyclical/sparsity@2' is unknown.*upgrade hf_cyclical",
            ),
            (put("schema", "other"), "schema 'other' is unknown.*stamp the model again"),
            (put("schema", ["x"]), "schema"),
            (put("more", 1), "the record"),
            (put("achieved", []), "achieved"),
            (put("achieved.prunable", 74_800.0), "achieved.prunable"),
            (put("achieved.prunable", True), "achieved.prunable"),
            (put("achieved.zeros", -1), "achieved.zeros"),
            (put("achieved.zeros", 10**30), "achieved.zeros"),
            (put("achieved.zeros", 0), "achieved.zeros"),
            (put("achieved.parameters", 1), "achieved"),
            (put("achieved.prunable_zeros", 1), "achieved.prunable_zeros"),
            (put("achieved.sparsity", 0.91), "achieved.sparsity"),
            (put("achieved.sparsity", float("nan")), "achieved.sparsity"),
            (put("achieved.sparsity", "0.9"), "achieved.sparsity"),
            (put("achieved.overall_sparsity", 1.5), "achieved.overall_sparsity"),
            (put("tensors.0.zeros", 10**9), r"tensors\[0\].zeros"),
            (put("tensors.0.weights", 1), r"tensors\[0\].weights"),
            (put("tensors.0.shape", [2**40] * 17), r"tensors\[0\].shape"),
            (put("tensors.0.shape", [-8, -3, 3, 3]), r"tensors\[0\].shape\[0\]"),
            (put("tensors.0.shape", "8"), r"tensors\[0\].shape"),
            (put("tensors.0.name", "a" * 501), r"tensors\[0\].name"),
            (put("tensors.0.name", "\x1b[2J"), r"tensors\[0\].name"),
            (put("tensors.0.name", "\ud800"), r"tensors\[0\].name"),
            (put("tensors.0.name", "zzz"), "tensors '8 names' must be sorted"),
            (put("tensors.0.mask_sha256", HASH), "mask_sha256"),
            (put("tensors.0.mask_sha256", "x"), r"tensors\[0\].mask_sha256"),
            (put("tensors", [{}] * 10_001), "tensors"),
            (put("tensors", []), "achieved.prunable"),
            (put("mask_sha256", HASH), "mask_sha256"),
            (put("weights.file", "../../etc/passwd"), "weights.file"),
            (put("weights.layout", "zip"), "weights.layout"),
            (put("weights.bytes", "1"), "weights.bytes"),
            (put("method", "gradual"), "method"),
            (put("settings.include", [[1]]), r"settings.include\[0\]"),
            (put("settings.x", {"y": 1}), "settings.x"),
            (put("settings", {f"k{i}": i for i in range(101)}), "settings"),
            (put("recovery.0.regrown", 2), r"recovery\[0\].regrown"),
            (put("recovery.0.cycle", 0), r"recovery\[0\].cycle"),
            (put("evaluation.dense", {"accuracy": float("inf")}), "evaluation.dense.accuracy"),
            (put("evaluation.dense", {"a\nb": 1}), "evaluation.dense"),
            (put("base_model.id", 3), "base_model.id"),
            (put("versions.torch", "1 2"), "versions.torch"),
            (lambda content: content.pop("weights"), "the record"),
        ],
    )
    def test_names_the_field(self, metadata, change, words):
        content = json.loads(json.dumps(metadata))  # plain dicts, which can be changed
        change(content)
        with pytest.raises(PruningError, match=words) as caught:
            read_metadata(json.dumps(content).encode())
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (b"", "is not valid JSON"),
            (b"\xff\xfe\x00", "is not valid JSON"),
            (b"null", "no settings but a NoneType"),
            (b"[1]", "no settings but a list"),
            (b'{"schema": 1, "schema": 2}', "a key is there twice"),
            (b'{"schema": ' + b"9" * 5000 + b"}", "is not valid JSON"),
            (b'{"schema": ' + b"[" * 100 + b"]" * 100 + b"}", "nested too deeply"),
            (b"[" * 1_000_000, "nested too deeply"),
            (b'{"a":' * 500_000, "nested too deeply"),
            (b" " * (1 << 22) + b"{}", "4,194,306 bytes, more than 4,194,304"),
        ],
        ids=range(10),
    )
    def test_what_is_no_record(self, data, words):
        with pytest.raises(PruningError, match=words) as caught:
            read_metadata(data)
        assert "\n" not in str(caught.value)

    def test_a_record_with_packed_weights(self, metadata):
        packed = metadata | {"weights": metadata["weights"] | {"layout": "packed"}}
        assert read_metadata(json.dumps(packed).encode()) == packed

    def test_a_file_that_was_edited_by_hand(self, tmp_path):
        save_stamped("ResNet", tmp_path)
        edit_json(tmp_path / METADATA_NAME, put("achieved.zeros", 7))
        with pytest.raises(PruningError, match=r"achieved.zeros 7 must be"):
            read_metadata((tmp_path / METADATA_NAME).read_bytes())
