"""sparsity.json: counted from the weights, written with its marks, read from strangers."""

import hashlib
import json
from dataclasses import replace

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.stamped import save_pruned, save_stamped
from support.started import SHORT, prune
from support.tiny_models import assert_same_model, images, logits, same, save_family
from transformers import AutoConfig, AutoModelForImageClassification

from hf_cyclical import PruningError, load_report
from hf_cyclical.formats import METADATA_NAME, pack_folder, read_metadata, unpack_folder
from hf_cyclical.hub import build_metadata, mask_hash, stamp, verify

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module", params=["timm", "transformers"])
def run(request, tmp_path_factory):
    """A real run, of a model of each library."""
    folder = tmp_path_factory.mktemp("run")
    given = []
    if request.param == "transformers":
        save_family("ResNet", folder / "base")
        given = ["--model_name_or_path", str(folder / "base"), "--dataset_name", "digits"]
    assert prune(*SHORT, *given, "--output_dir", str(folder / "out")) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    return save_stamped("cifar_resnet8", tmp_path_factory.mktemp("model"))


def count(file, names):
    """Weights and zeros of each tensor, one by one."""
    tensors = load_file(file)
    values = {name: torch.flatten(tensor).tolist() for name, tensor in tensors.items()}
    return {name: (len(values[name]), sum(value == 0 for value in values[name])) for name in names or values}


class TestHash:
    def test_by_hand(self):
        tensor = torch.tensor([[0.0, 2.0, -0.0], [3.0, 0.0, 0.0], [0.0, 0.0, float("nan")]])
        # Nonzero are the places 1, 3 and 8: bits 1 and 3 of the first byte, bit 0 of the second.
        text = b"w\0" + b"\x03\0\0\0\0\0\0\0" * 2 + b"\x0a\x01"
        assert mask_hash("w", tensor) == hashlib.sha256(text).hexdigest()
        assert mask_hash("w", tensor.bfloat16()) == mask_hash("w", tensor)
        assert mask_hash("w", tensor.to(torch.float8_e4m3fn)) == mask_hash("w", tensor)

    def test_tells_names_shapes_and_places_apart(self):
        tensor = torch.tensor([0.0, 1.0, 0.0, 1.0])
        others = [("v", tensor), ("w", tensor.view(2, 2)), ("w", tensor.flip(0)), ("w", torch.ones(4))]
        assert len({mask_hash("w", tensor), *(mask_hash(*other) for other in others)}) == 5

    def test_root(self, metadata):
        digests = sorted((entry["name"], entry["mask_sha256"]) for entry in metadata["tensors"])
        joined = b"".join(bytes.fromhex(digest) for _, digest in digests)
        assert metadata["mask_sha256"] == hashlib.sha256(joined).hexdigest()


class TestRealRuns:
    def test_counts_are_those_of_the_weights_and_of_the_report(self, run):
        report, metadata = load_report(run), stamp(run, load_report(run))
        names = [entry["name"] for entry in metadata["tensors"]]
        counted = count(run / WEIGHTS, names)
        assert {entry["name"]: (entry["weights"], entry["zeros"]) for entry in metadata["tensors"]} == counted
        assert sorted(layer.name.removeprefix("timm_model.") for layer in report.layers) == names
        assert metadata["achieved"] | {"zeros": 0} == {
            "prunable": sum(weights for weights, _ in counted.values()),
            "prunable_zeros": report.pruned,
            "sparsity": report.sparsity,
            "parameters": report.parameters,
            "zeros": 0,
            "overall_sparsity": report.overall_sparsity,
        }
        every = count(run / WEIGHTS, [n for n in load_file(run / WEIGHTS) if "running_" not in n and "num_ba" not in n])
        assert metadata["achieved"]["zeros"] == sum(zeros for _, zeros in every.values())

    def test_says_how_it_was_made(self, run):
        report, metadata = load_report(run), stamp(run, load_report(run))
        assert metadata["method"] == "cyclical"
        assert metadata["settings"] == report.config
        assert [cycle["recovered"] for cycle in metadata["recovery"]] == [c.recovered for c in report.cycles]
        assert metadata["evaluation"]["dense"]["accuracy"] == report.dense["accuracy"]
        assert metadata["evaluation"]["pruned"]["accuracy"] == report.cycles[-1].metrics["accuracy"]
        assert metadata["versions"] == report.about["versions"]
        # Random weights at the start, or those of a folder, whose path stays private: nothing of the Hub's.
        assert metadata["base_model"] == {"id": None, "revision": None}

    def test_stamping_twice_is_stamping_once(self, run):
        before = AutoModelForImageClassification.from_pretrained(run)
        metadata = stamp(run, load_report(run))
        files = {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()}
        mode = (run / WEIGHTS).stat().st_mode
        assert stamp(run, load_report(run)) == metadata
        assert {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()} == files
        assert (run / WEIGHTS).stat().st_mode == mode
        assert read_metadata(files[METADATA_NAME]) == metadata
        assert metadata["weights"]["sha256"] == hashlib.sha256(files[WEIGHTS]).hexdigest()
        after = AutoModelForImageClassification.from_pretrained(run)
        assert_same_model(before, after, images(32))
        if (run / "config.json").read_text().find("model_type") < 0:
            native = timm.create_model(f"local-dir:{run}", pretrained=True)
            assert same(logits(native, images(32)), logits(after, images(32)))
        assert verify(run).ok


class TestStamp:
    @pytest.mark.parametrize("name", ["ResNet", "ViT", "Swin", "MobileNetV2", "test_vit", "test_convnext"])
    def test_every_family_has_the_parameters_of_its_report(self, name, tmp_path):
        report = save_pruned(name, tmp_path)
        achieved = stamp(tmp_path, report)["achieved"]
        assert achieved["parameters"] == report.parameters
        assert achieved["prunable_zeros"] == report.pruned
        assert verify(tmp_path).ok

    def test_layers_that_transformers_saves_under_other_names(self, tmp_path):
        report = save_pruned("ViT", tmp_path)
        tensors = stamp(tmp_path, report)["tensors"]
        names = [entry["name"] for entry in tensors]
        assert "vit.layers.0.attention.k_proj.weight" in {layer.name for layer in report.layers}
        assert "vit.encoder.layer.0.attention.attention.key.weight" in names
        saved = load_file(tmp_path / WEIGHTS)
        assert names == sorted(name for name in saved if saved[name].ndim > 1 and name.endswith("weight"))

    def test_marks(self, tmp_path):
        report = save_pruned("cifar_resnet8", tmp_path)
        before = json.loads((tmp_path / "config.json").read_text())
        metadata = stamp(tmp_path, report)
        config = json.loads((tmp_path / "config.json").read_text())
        short = config.pop("hf_cyclical")
        assert config == before
        assert short == {
            "schema": "hf_cyclical/sparsity@1", "method": "cyclical", "share": "uniform", "target": 0.9,
            "achieved": report.sparsity, "cycles": 2, "mask_sha256": metadata["mask_sha256"], "layout": "dense",
        }  # fmt: skip
        with safe_open(tmp_path / WEIGHTS, "pt") as file:
            header = file.metadata()
        assert header["format"] == "pt"
        marks = {"schema": "hf_cyclical/sparsity@1", "mask_sha256": metadata["mask_sha256"]}
        assert json.loads(header["hf_cyclical"]) == marks
        assert AutoConfig.from_pretrained(tmp_path).hf_cyclical == short  # and so it outlives a round trip

    def test_packing_and_unpacking_gives_the_same_file(self, tmp_path):
        report = save_pruned("ResNet", tmp_path / "dense")
        tensors = load_file(tmp_path / "dense" / WEIGHTS)
        tensors = {k: torch.where(t == 0, -0.0, t) if t.is_floating_point() else t for k, t in tensors.items()}
        save_file(tensors, tmp_path / "dense" / WEIGHTS, {"format": "pt"})
        stamp(tmp_path / "dense", report)
        pack_folder(tmp_path / "dense", tmp_path / "packed")
        unpack_folder(tmp_path / "packed", tmp_path / "back")
        assert (tmp_path / "back" / WEIGHTS).read_bytes() == (tmp_path / "dense" / WEIGHTS).read_bytes()
        with pytest.raises(PruningError, match="is packed: stamp the model first"):
            stamp(tmp_path / "packed", report)

    def test_of_the_chosen_cycle_and_without_what_is_no_number(self, tmp_path):
        report = save_pruned("ResNet", tmp_path)
        dense = {"accuracy": 0.9, "loss": float("nan")}
        report = replace(report, chosen_update=12, dense=dense, about={"model": str(tmp_path)})
        metadata = stamp(tmp_path, report)
        assert metadata["evaluation"] == {"dense": {"accuracy": 0.9}, "pruned": {"accuracy": 0.6}}
        assert metadata["base_model"] == {"id": None, "revision": None}
        assert "hf_cyclical" in metadata["versions"]
        assert str(tmp_path) not in (tmp_path / METADATA_NAME).read_text()

    @pytest.mark.parametrize(
        ("field", "change", "words"),
        [
            ("kept", lambda n: n - 1, r"layer 'timm_model.conv1.weight' has 43 nonzero weights, the report 42"),
            ("shape", lambda shape: shape[::-1], r"layer 'timm_model.conv1.weight' has shape \[16, 3, 3, 3\]"),
            ("name", lambda name: f"{name}s", r"layer 'timm_model.conv1.weights' of the report is not in"),
        ],
    )
    def test_weights_that_are_not_those_of_the_report(self, field, change, words, tmp_path):
        report = save_pruned("cifar_resnet8", tmp_path)
        layer, *others = report.layers
        layer = replace(layer, **{field: change(getattr(layer, field))})
        report = replace(report, layers=(layer, *others))
        with pytest.raises(PruningError, match=words):
            stamp(tmp_path, report)
        assert not (tmp_path / METADATA_NAME).exists()
        report = replace(report, layers=())
        with pytest.raises(PruningError, match="no pruned layers"):
            build_metadata(tmp_path, report)

    def test_folders_that_lack_something(self, tmp_path):
        report = save_pruned("ResNet", tmp_path)
        (tmp_path / WEIGHTS).rename(tmp_path / "away")
        with pytest.raises(PruningError, match="there is no file"):
            stamp(tmp_path, report)
        (tmp_path / "config.json").unlink()
        with pytest.raises(PruningError, match=r"there is no config.json"):
            stamp(tmp_path, report)
