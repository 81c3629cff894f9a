"""Models for images of another size than they were trained with."""

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support.tiny_models import FAMILIES, LABELS, images, logits, same, save_family, save_timm
from transformers import AutoImageProcessor, AutoModelForImageClassification

from hf_cyclical import PruningError
from hf_cyclical.models import load_image_model, make_portable

TIMM = ["test_resnet", "test_vit", "test_convnext", "vit_tiny_patch16_224", "cifar_resnet8"]


def save(name, folder):
    return save_family(name, folder) if name in FAMILIES else save_timm(name, folder)


@pytest.mark.parametrize("name", [*FAMILIES, *TIMM])
def test_trained_weights_take_the_size_that_is_asked_for(name, tmp_path):
    original = save(name, tmp_path / "base")
    loaded = load_image_model(tmp_path / "base", LABELS, image_size=64, resize_trained=True)
    assert loaded.settings.size == 64
    old, new = original.state_dict(), loaded.model.state_dict()
    new = {key.removeprefix("timm_model."): tensor for key, tensor in new.items()}
    other = {key for key in old if old[key].shape != new[key].shape or not torch.equal(old[key], new[key])}
    assert all("pos" in key for key in other)
    expected = logits(loaded.model, images(64))

    loaded.model.save_pretrained(tmp_path / "saved")
    loaded.processor.save_pretrained(tmp_path / "saved")
    make_portable(tmp_path / "saved")
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "saved")
    assert same(logits(again, images(64)), expected)
    if name in TIMM:
        native = timm.create_model(f"local-dir:{tmp_path / 'saved'}", pretrained=True)
        assert same(logits(native, images(64)), expected)
        assert list(native.pretrained_cfg["input_size"]) == [3, 64, 64]
    pixels = AutoImageProcessor.from_pretrained(tmp_path / "saved")(Image.new("RGB", (90, 70)), return_tensors="pt")
    assert pixels["pixel_values"].shape == (1, 3, 64, 64)
    assert load_image_model(tmp_path / "saved", LABELS).settings == loaded.settings


def test_position_embeddings_are_interpolated_as_timm_does(tmp_path):
    original = save("vit_tiny_patch16_224", tmp_path)
    resized = load_image_model(tmp_path, LABELS, image_size=64, resize_trained=True).model
    original.set_input_size(img_size=64)
    assert same(logits(resized, images(64)), logits(original, images(64)))


def test_position_embeddings_of_transformers(tmp_path):
    """A map that grows by the same amount per step keeps that, except at the border."""
    save("DeiT", tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    key = "deit.embeddings.position_embeddings"
    weights[key][:, 2:] = torch.arange(4.0).repeat_interleave(4)[None, :, None]  # the row of a patch
    weights[key][:, :2] = 7.0
    save_file(weights, file, {"format": "pt"})
    found = load_image_model(tmp_path, LABELS, image_size=64, resize_trained=True).model.state_dict()[key]
    assert found.shape == (1, 2 + 64, 8)
    assert (found[:, :2] == 7.0).all()
    grid = found[0, 2:, 0].view(8, 8)
    assert torch.allclose(grid, grid[:, :1].expand(8, 8), atol=1e-5)
    assert torch.allclose(grid[2:6, 0], torch.tensor([0.75, 1.25, 1.75, 2.25]), atol=0.1)


def test_sizes_that_a_model_cannot_take(tmp_path):
    save("ViT", tmp_path)
    with pytest.raises(PruningError, match="cannot be made for images of 7 pixels, use another"):
        load_image_model(tmp_path, LABELS, image_size=7, resize_trained=True)


@pytest.mark.parametrize("name", [*FAMILIES, *TIMM])
def test_the_whole_of_an_image(name, tmp_path):
    """A frame around an image is seen if nothing is cut off, and most processors cut it off."""
    save(name, tmp_path)
    image = Image.new("RGB", (60, 60), "black")
    image.paste("white", (1, 1, 59, 59))
    loaded = load_image_model(tmp_path, LABELS, whole=True)
    pixels = loaded.processor(image, return_tensors="pt")["pixel_values"][0, 0]
    assert pixels.shape == (loaded.settings.size, loaded.settings.size)
    assert pixels[0, 0] < pixels[pixels.shape[0] // 2, pixels.shape[1] // 2] - 0.5
    loaded.model.save_pretrained(tmp_path / "saved")
    loaded.processor.save_pretrained(tmp_path / "saved")
    again = AutoImageProcessor.from_pretrained(tmp_path / "saved")
    assert torch.equal(again(image, return_tensors="pt")["pixel_values"][0, 0], pixels)
