"""Verifying and loading: everything that was changed is found, and nothing that a repository holds does harm."""

import hashlib
import json
import re
import shutil
import tempfile

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.odd_dtypes import BITS, with_dtype
from support.stamped import edit_json, save_stamped
from support.tiny_models import FAMILIES, TIMM, assert_same_model, images, save_timm

from hf_cyclical import PruningError
from hf_cyclical.formats import encode, pack_file, pack_folder, unpack_folder
from hf_cyclical.hub import verify
from hf_cyclical.models import load

WEIGHTS, RECORD = "model.safetensors", "sparsity.json"
CONV = "conv1.weight"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A stamped model of each library, dense and packed."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("cifar_resnet8", "ResNet"):
        save_stamped(name, folder / name)
        pack_folder(folder / name, folder / f"{name}-packed")
    return folder


@pytest.fixture
def model(models, tmp_path):
    return shutil.copytree(models / "cifar_resnet8", tmp_path / "model")


def rewrite(folder, change, **header):
    """Change the tensors of the file, and its header."""
    tensors = load_file(folder / WEIGHTS)
    with safe_open(folder / WEIGHTS, "pt") as file:
        metadata = file.metadata()
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata | header)


def flip(tensors):
    kernel = tensors[CONV].view(-1)
    kernel[kernel.nonzero()[0]] *= -1


def move(tensors):
    kernel = tensors[CONV].view(-1)
    kept, pruned = kernel.nonzero()[0], (kernel == 0).nonzero()[0]
    kernel[pruned], kernel[kept] = kernel[kept].clone(), 0.0


def regrow(tensors):
    kernel = tensors[CONV].view(-1)
    kernel[(kernel == 0).nonzero()[0]] = 1e-9


def nothing(tensors):
    pass


class TestOk:
    @pytest.mark.parametrize("name", ["cifar_resnet8", "ResNet"])
    @pytest.mark.parametrize("layout", ["", "-packed"])
    def test_what_was_stamped(self, models, name, layout):
        found = verify(models / f"{name}{layout}")
        assert found.ok
        assert not found.differences
        assert found.table().endswith("the weights are what its files say.")
        assert "differs" not in found.table()

    def test_the_table(self, models):
        metadata = json.loads((models / "cifar_resnet8" / RECORD).read_text())
        rows = {field: (said, found) for field, said, found in verify(models / "cifar_resnet8").rows}
        assert rows["tensors"] == ("8", "8")
        assert rows["achieved prunable"] == (f"{metadata['achieved']['prunable']:,}",) * 2
        assert rows["header mask_sha256"] == rows["config.json mask_sha256"] == rows["mask_sha256"]

    @pytest.mark.parametrize("name", [*FAMILIES, *TIMM])
    def test_there_and_back(self, name, tmp_path):
        dense, packed, back = (tmp_path / layout for layout in ("dense", "packed", "back"))
        save_stamped(name, dense)
        pack_folder(dense, packed)
        unpack_folder(packed, back)
        assert [verify(folder).differences for folder in (dense, packed, back)] == [()] * 3
        assert contents(back) == contents(dense)
        record, config = (json.loads((packed / file).read_text()) for file in (RECORD, "config.json"))
        digest = hashlib.sha256((packed / WEIGHTS).read_bytes()).hexdigest()
        size = (packed / WEIGHTS).stat().st_size
        assert record["weights"] == {"file": WEIGHTS, "layout": "packed", "sha256": digest, "bytes": size}
        assert config["hf_cyclical"]["layout"] == "packed"
        assert record | {"weights": 0} == json.loads((dense / RECORD).read_text()) | {"weights": 0}

    def test_unpacks_nothing_to_the_disk(self, models, monkeypatch):
        monkeypatch.setattr(tempfile, "mkdtemp", lambda *args, **kwargs: pytest.fail("a folder was made"))
        monkeypatch.setattr(safetensors.torch, "serialize_file", lambda *args: pytest.fail("a file was written"))
        assert verify(models / "ResNet-packed").ok


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


class TestTampering:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (flip, "weights sha256 is recorded as"),
            (move, "tensor 'conv1.weight': mask_sha256"),
            (regrow, "tensor 'conv1.weight': zeros is recorded as 389, but is 388"),
            (
                lambda t: t.update(extra=torch.zeros(3, 3)),
                "'extra' is in the weights, but not in the model",
            ),
            (lambda t: t.update(extra=torch.zeros(3, 3, dtype=torch.int32)), "weights sha256"),
            (lambda t: t.pop(CONV), "tensor 'conv1.weight' is recorded, but not in the weights"),
            (lambda t: t.pop("bn1.bias"), "'bn1.bias' of the model of config.json is not in the weights"),
            (lambda t: t.update({CONV: t[CONV].view(16, 27).clone()}), r"tensor 'conv1.weight': shape is .*\[16, 27\]"),
            (lambda t: t.update({CONV: t[CONV].half()}), "weights bytes"),
            (lambda t: [tensor.fill_(0) for tensor in t.values()], "achieved zeros"),
        ],
    )
    def test_of_weights(self, model, change, words, tmp_path):
        rewrite(model, change)
        assert words_in(verify(model), words)
        pack_folder(model, tmp_path / "packed")  # which hides nothing
        assert not verify(tmp_path / "packed").ok
        unpack_folder(tmp_path / "packed", tmp_path / "back")
        assert words_in(verify(tmp_path / "back"), words)

    @pytest.mark.parametrize("change", [flip, move, regrow])
    def test_of_packed_weights(self, model, change, tmp_path):
        rewrite(model, change)
        pack_folder(model, tmp_path / "packed")
        assert words_in(verify(tmp_path / "packed"), "weights sha256 is recorded as")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda c: c["achieved"].update(prunable_zeros=1), "achieved prunable_zeros is recorded as 1, but is"),
            (lambda c: c["achieved"].update(sparsity=0.95), "achieved sparsity is recorded as 0.95"),
            (lambda c: c["achieved"].update(parameters=10**6), "achieved parameters is recorded as 1,000,000"),
            (lambda c: c["tensors"][0].update(zeros=1), "zeros is recorded as 1"),
            (lambda c: c["tensors"][0].update(shape=[432]), "shape"),
            (lambda c: c["tensors"][0].update(mask_sha256="0" * 64), "mask_sha256 is recorded as 0000"),
            (lambda c: c["tensors"].pop(0), "achieved prunable"),
            (lambda c: c.update(mask_sha256="0" * 64), "mask_sha256 is recorded as 0000"),
            (lambda c: c.update(method="gradual"), "method is recorded as gradual, but is cyclical"),
            (lambda c: c["settings"].update(target_sparsity=0.5), "config.json target is recorded as 0.9, but is 0.5"),
            (lambda c: c["weights"].update(sha256="0" * 64), "weights sha256 is recorded as 0000"),
            (lambda c: c["weights"].update(bytes=1), "weights bytes is recorded as 1,"),
            (lambda c: c["weights"].update(layout="packed"), "weights layout is recorded as packed, but is dense"),
        ],
    )
    def test_of_the_record(self, model, change, words):
        edit_json(model / RECORD, change)
        assert words_in(verify(model), words)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda c: c["hf_cyclical"].update(achieved=0.99), "config.json achieved is recorded as 0.99"),
            (lambda c: c["hf_cyclical"].update(mask_sha256="\x1b[2J"), r"config.json mask_sha256 .* '\\x1b\[2J'"),
            (lambda c: c["hf_cyclical"].update(cycles=True), "config.json cycles is recorded as True, but is 2"),
            (lambda c: c["hf_cyclical"].update(cycles=10**100), "a huge number"),
            (lambda c: c["hf_cyclical"].update(more=1), "config.json has 'more', which is unknown"),
            (lambda c: c["hf_cyclical"].pop("share"), "config.json share is recorded as nothing"),
            (lambda c: c.pop("hf_cyclical"), "config.json has no table 'hf_cyclical'"),
            (lambda c: c.update(hf_cyclical=["x"] * 1000), "config.json has no table 'hf_cyclical'"),
        ],
    )
    def test_of_the_config(self, model, change, words):
        edit_json(model / "config.json", change)
        assert words_in(verify(model), words)

    @pytest.mark.parametrize("header", ["{", "[]", "", "x" * 100_000, '{"schema": 1}', "[" * 900])
    def test_of_the_header(self, model, header):
        rewrite(model, nothing, hf_cyclical=header)
        assert words_in(verify(model), "header")

    def test_the_last_digit_of_a_hash(self, model):
        def change(content):
            digest = content["weights"]["sha256"]
            content["weights"]["sha256"] = digest[:-1] + ("0" if digest[-1] != "0" else "1")

        edit_json(model / RECORD, change)
        assert words_in(verify(model), "weights sha256")
        assert verify(model).table().count("differs") == 1

    def test_a_fine_tuned_model_that_keeps_its_config(self, model):
        rewrite(model, lambda tensors: [t.add_(0.1) for t in tensors.values() if t.is_floating_point()])
        found = verify(model)
        assert len(found.differences) > 20
        assert found.table().endswith(f"and {len(found.differences) - 20} more")


def words_in(found, words):
    assert not found.ok
    assert "\x1b" not in found.table()
    assert "  differs" in found.table() or "which is unknown" in found.table() or "tensor " in found.table()
    assert all(len(line) < 300 and "\n" not in line for line in found.differences)
    return any(re.search(words, line) for line in found.differences)


def pickled(folder):
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def disguised(folder):
    torch.save({"w": torch.zeros(3)}, folder / WEIGHTS)


def large(folder, name):
    with (folder / name).open("r+b") as file:
        file.truncate(1 << 30)  # takes no room


def linked(folder, name):
    elsewhere = folder.parent / f"elsewhere-{name}"
    (folder / name).rename(elsewhere)
    (folder / name).symlink_to(elsewhere)


def sharded(folder):
    (folder / WEIGHTS).unlink()
    (folder / f"{WEIGHTS}.index.json").write_text('{"weight_map": {"w": "../../secret"}}')


def bomb(folder):
    """A packed tensor of 2**70 zeros."""
    packed = folder / "packed.safetensors"
    pack_file(folder / WEIGHTS, packed)
    payload = encode(torch.zeros(1))
    huge = bytes([0x80] * 5 + [1])  # LEB128 of 2**35
    payload = torch.cat([payload[:9], torch.tensor([2, *huge, *huge], dtype=torch.uint8), payload[11:]])
    with safe_open(packed, "pt") as file:
        metadata = file.metadata()
    about = json.loads(metadata["hf_cyclical_packed"])
    about["tensors"][CONV] = ["float32", [2**35, 2**35]]
    tensors = load_file(packed) | {CONV: payload}
    save_file(tensors, folder / WEIGHTS, metadata | {"hf_cyclical_packed": json.dumps(about)})
    packed.unlink()


HOSTILE = [
    (pickled, "no model.safetensors but 'pytorch_model.bin', a pickle, which is never opened"),
    (disguised, "is no safetensors file, or damaged"),
    (lambda folder: (folder / WEIGHTS).write_bytes(b"\xff" * 100), "is no safetensors file, or damaged"),
    (lambda folder: (folder / WEIGHTS).unlink(), "no weights that are known"),
    (sharded, "in several files"),
    (bomb, "more than max_bytes"),
    *(
        (lambda folder, dtype=dtype: with_dtype(folder / WEIGHTS, CONV, dtype), f"of {dtype}, which cannot be read")
        for dtype in BITS
    ),
    (lambda folder: large(folder, "config.json"), "config.json of .* has 1,073,741,824 bytes"),
    (lambda folder: linked(folder, "config.json"), "config.json of .* is a link to elsewhere"),
    (lambda folder: linked(folder, WEIGHTS), "model.safetensors of .* is a link to elsewhere"),
    (lambda folder: (folder / "config.json").write_text("{"), "config.json is not valid JSON"),
    (lambda folder: (folder / "config.json").write_text("[" * 100_000), "config.json is nested too deeply"),
    (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
]


class TestHostile:
    @pytest.mark.parametrize("read", [verify, load])
    @pytest.mark.parametrize(("harm", "words"), HOSTILE)
    def test_files(self, model, read, harm, words, monkeypatch):
        harm(model)
        monkeypatch.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("a pickle was opened"))
        with pytest.raises(PruningError, match=words) as caught:
            read(model)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("harm", "words"),
        [
            (lambda folder: large(folder, RECORD), "sparsity.json of .* has 1,073,741,824 bytes"),
            (lambda folder: linked(folder, RECORD), "sparsity.json of .* is a link"),
            (lambda folder: (folder / RECORD).unlink(), "has no sparsity.json"),
            (lambda folder: (folder / RECORD).write_text("[" * 100_000), "nested too deeply"),
            (lambda folder: edit_json(folder / RECORD, lambda c: c.update(tensors=3)), "tensors 3 must be a list"),
            (
                lambda folder: edit_json(folder / RECORD, lambda c: c["weights"].update(file="../x")),
                "weights.file '../x' must be",
            ),
        ],
    )
    def test_records(self, model, harm, words):
        harm(model)
        with pytest.raises(PruningError, match=words):
            verify(model)

    def test_weights_that_are_larger_than_allowed(self, models):
        for folder in (models / "ResNet", models / "ResNet-packed"):
            for read in (verify, load):
                with pytest.raises(PruningError, match=r"are read|more than max_bytes"):
                    read(folder, max_bytes=10_000)

    @pytest.mark.parametrize("source", ["/nowhere", "./a/b", "a/b/c", "resnet18", "~/none", ""])
    def test_names(self, source):
        with pytest.raises(PruningError, match="neither a folder here nor a Hub id"):
            verify(source)

    def test_a_folder_has_no_revisions(self, model):
        with pytest.raises(PruningError, match="revision 'packed' has no meaning for the folder"):
            verify(model, "packed")


class TestLoad:
    @pytest.mark.parametrize("name", ["cifar_resnet8", "ResNet"])
    def test_either_layout(self, models, name):
        dense, packed = load(models / name), load(str(models / f"{name}-packed"))
        assert_same_model(dense, packed, images(32))
        assert not dense.training

    def test_a_model_that_was_never_stamped(self, tmp_path):
        original = save_timm("cifar_resnet8", tmp_path)
        assert_same_model(load(tmp_path), original, images(32))
