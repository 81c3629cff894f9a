import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from tiny_models import images, logits, same

from hf_cyclical import PruningError, prunable_parameters

# Parameters for 10 classes, and layers with weights.
CIFAR = {
    "cifar_resnet8": (75_290, 8),
    "cifar_resnet20": (269_722, 20),
    "cifar_resnet56": (853_018, 56),
    "cifar_vgg14": (14_724_042, 14),
    "cifar_mobilenet": (3_217_226, 28),
}


@pytest.mark.parametrize("name", CIFAR)
def test_cifar_networks(name):
    model = timm.create_model(name)
    parameters, depth = CIFAR[name]
    assert sum(p.numel() for p in model.parameters()) == parameters
    layers = prunable_parameters(model)
    assert len(layers) == depth
    assert next(iter(layers)) == f"{model.pretrained_cfg['first_conv']}.weight"
    assert list(layers)[-1] == f"{model.pretrained_cfg['classifier']}.weight"
    assert logits(model, images(32)).shape == (2, 10)
    assert logits(model, images(8)).shape == (2, 10)
    bare = timm.create_model(name, num_classes=0)
    assert logits(bare, images(32)).shape == (2, model.num_features)
    assert logits(timm.create_model(name, in_chans=1), images(32)[:, :1]).shape == (2, 10)
    model.reset_classifier(7)
    assert logits(model, images(32)).shape == (2, 7)
    assert model.get_classifier().out_features == model.num_classes == 7
    features = model.forward_features(images(32))
    assert model.forward_head(features, pre_logits=True).shape == (2, model.num_features)


SCRIPT = Path(__file__).parents[1] / "scripts" / "convert_cifar_resnet.py"


@pytest.fixture
def public_weights(tmp_path):
    """A model, and a file of its weights under the names that public files have."""
    torch.manual_seed(0)
    model = timm.create_model("cifar_resnet20").eval()
    public = {
        key.replace("fc.", "linear."): tensor
        for key, tensor in model.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    save_file(public, tmp_path / "public.safetensors")
    return model, tmp_path / "public.safetensors"


def test_converted_weights_give_the_same_logits(public_weights, tmp_path):
    model, file = public_weights
    script = runpy.run_path(str(SCRIPT))
    script["convert"](file, tmp_path / "out", "cifar_resnet20", script["CIFAR10"])
    again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    assert same(logits(again, images(32)), logits(model, images(32)))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["label_names"][3] == "cat"
    for wrong, message in {
        (file, tmp_path / "out"): "not an empty folder",
        (tmp_path / "no", tmp_path / "new"): "no file",
    }.items():
        with pytest.raises(PruningError, match=message):
            script["convert"](*wrong, "cifar_resnet20", script["CIFAR10"])


def test_weights_of_another_network_are_refused_in_one_line(public_weights, tmp_path):
    command = [sys.executable, SCRIPT, public_weights[1], tmp_path / "new", "--model", "cifar_resnet56"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "layer1.3.conv1.weight is missing" in refused.stderr
    assert not (tmp_path / "new").exists()
