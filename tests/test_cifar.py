import json
import runpy
from pathlib import Path

import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file
from tiny_models import images, logits, same

from hf_cyclical import prunable_parameters

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


@pytest.fixture
def script():
    """The names of the script, which quietens transformers when it runs."""
    verbosity = transformers.utils.logging.get_verbosity()
    yield runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "convert_cifar_resnet.py"))
    transformers.utils.logging.set_verbosity(verbosity)
    transformers.utils.logging.enable_progress_bar()


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


def test_converted_weights_give_the_same_logits(script, public_weights, tmp_path):
    model, file = public_weights
    assert script["main"]([str(file), str(tmp_path / "out"), "--model", "cifar_resnet20"]) == 0
    again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    assert same(logits(again, images(32)), logits(model, images(32)))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["label_names"][3] == "cat"


@pytest.mark.parametrize(
    ("file", "folder", "model", "message"),
    [
        ("public.safetensors", "new", "cifar_resnet56", "layer1.3.conv1.weight is missing in it"),
        ("public.safetensors", ".", "cifar_resnet20", "is not an empty folder: choose another"),
        ("nothing", "new", "cifar_resnet20", "is no file: give the safetensors file"),
        ("text", "new", "cifar_resnet20", "is no safetensors file or damaged"),
    ],
)
def test_what_cannot_be_converted_is_said_in_one_line(
    file, folder, model, message, script, public_weights, tmp_path, capsys
):
    (tmp_path / "text").write_text("no weights")
    assert script["main"]([str(tmp_path / file), str(tmp_path / folder), "--model", model]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_resnet_passes_gradients_back_in_the_layout_of_its_activations(layout):
    torch.manual_seed(0)
    model = timm.create_model("cifar_resnet8")
    strides = []

    def compare(module, inputs, output):
        output.register_hook(lambda gradient: strides.append((output.stride(), gradient.stride())))

    for stage in (model.layer1, model.layer2, model.layer3):
        stage.register_forward_hook(compare)
    model(images(32).contiguous(memory_format=layout)).square().sum().backward()
    assert len(strides) == 3
    assert all(output == gradient for output, gradient in strides)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_resnet_block_is_that_of_he_et_al_without_parameters_in_the_shortcut(layout):
    torch.manual_seed(0)
    block = timm.create_model("cifar_resnet8").layer2[0]
    x = torch.randn(2, 16, 9, 9)
    y = block.bn2(block.conv2(block.bn1(block.conv1(x)).relu()))
    shortcut = torch.zeros_like(y)
    shortcut[:, 8:24] = x[:, :, ::2, ::2]
    assert same(block(x.contiguous(memory_format=layout)), (y + shortcut).relu())
