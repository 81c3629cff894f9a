import json
import logging

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image
from support.tiny_models import (
    FAMILIES,
    IMAGENET,
    LABELS,
    SQUARE,
    images,
    logits,
    prune,
    same,
    save_family,
    save_timm,
    zeros,
)
from transformers import AutoImageProcessor, AutoModelForImageClassification

from hf_cyclical import PruningError
from hf_cyclical.models import ImageSettings, load_image_model, make_portable


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, logger="hf_cyclical")
    return lambda: [r.getMessage() for r in caplog.records if r.name.startswith("hf_cyclical")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_transformers_model_survives_loading_pruning_and_saving(family, tmp_path, said):
    original = save_family(family, tmp_path / "base")
    loaded = load_image_model(str(tmp_path / "base"), LABELS)
    pixels = images(loaded.settings.size)
    assert same(logits(loaded.model, pixels), logits(original, pixels))
    assert not said()

    pruned = prune(loaded.model)
    loaded.model.save_pretrained(tmp_path / "pruned")
    loaded.processor.save_pretrained(tmp_path / "pruned")
    before = sorted((f.name, f.read_bytes()) for f in (tmp_path / "pruned").iterdir())
    make_portable(tmp_path / "pruned")
    assert sorted((f.name, f.read_bytes()) for f in (tmp_path / "pruned").iterdir()) == before

    again = AutoModelForImageClassification.from_pretrained(tmp_path / "pruned")
    assert same(logits(again, pixels), logits(loaded.model, pixels))
    assert zeros(again, pruned) == pruned == zeros(loaded.model, pruned)
    assert again.config.id2label == dict(enumerate(LABELS))
    assert load_image_model(str(tmp_path / "pruned"), LABELS).settings == loaded.settings


@pytest.mark.parametrize("family", FAMILIES)
def test_settings_are_what_the_processor_does(family, tmp_path):
    save_family(family, tmp_path)
    loaded = load_image_model(str(tmp_path), LABELS)
    settings = loaded.settings
    assert settings == FAMILIES[family][2]
    # An image of one colour: what is left is the size and the normalisation.
    colour = (200, 100, 50)
    expected = (np.array(colour) / 255 - settings.mean) / settings.std
    output = loaded.processor(Image.new("RGB", (40, 40), colour), return_tensors="pt")["pixel_values"][0].numpy()
    assert output.shape == (3, settings.size, settings.size)
    np.testing.assert_allclose(output, np.broadcast_to(expected[:, None, None], output.shape), atol=1e-4)


def test_a_folder_without_processor_gets_one(tmp_path, said):
    save_family("ViT", tmp_path / "base")
    (tmp_path / "base" / "preprocessor_config.json").unlink()
    loaded = load_image_model(str(tmp_path / "base"), LABELS)
    assert loaded.settings == ImageSettings(32, interpolation="bilinear", **IMAGENET)
    assert said() == [f"{tmp_path}/base has no image processor: images of 32 pixels, ImageNet's mean and deviation"]
    loaded.processor.save_pretrained(tmp_path)
    assert AutoImageProcessor.from_pretrained(tmp_path).size["height"] == 32


def test_colours_in_another_order_are_refused(tmp_path):
    save_family("ViT", tmp_path)
    transformers.MobileViTImageProcessor(size={"shortest_edge": 32}, crop_size=SQUARE).save_pretrained(tmp_path)
    with pytest.raises(PruningError, match="reorders colours"):
        load_image_model(str(tmp_path), LABELS)


@pytest.mark.parametrize("save", [lambda f: save_family("ResNet", f), lambda f: save_timm("cifar_resnet8", f)])
def test_a_new_head_is_said_and_the_rest_is_kept(save, tmp_path, said):
    old = save(tmp_path).state_dict()
    loaded = load_image_model(str(tmp_path), [*LABELS, "truck"])
    assert said() == [f"{tmp_path} gets a new head for 4 classes in place of one for 3"]
    new = {key.removeprefix("timm_model."): tensor for key, tensor in loaded.model.state_dict().items()}
    changed = {key for key in old if new[key].shape != old[key].shape or not torch.equal(new[key], old[key])}
    assert {key.partition(".")[0] for key in changed} <= {"classifier", "fc"}
    assert logits(loaded.model, images(32)).shape == (2, 4)
    assert loaded.model.config.id2label[3] == "truck"
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in loaded.model.parameters())


def test_weights_without_a_head_get_one(tmp_path, said):
    save_timm("test_vit", tmp_path, num_classes=0)
    assert logits(load_image_model(str(tmp_path), LABELS).model, images(160)).shape == (2, 3)
    assert said() == [f"{tmp_path} gets a new head for 3 classes in place of none"]


@pytest.mark.parametrize("kind", ["transformers", "timm"])
def test_the_labels_given_win(kind, tmp_path, said):
    if kind == "timm":
        save_timm("cifar_resnet8", tmp_path / "a", label_names=LABELS, label_descriptions=dict.fromkeys(LABELS, "x"))
    else:
        save_family("ViT", tmp_path / "a")
    loaded = load_image_model(str(tmp_path / "a"), ["x", "y", "z"])
    assert loaded.model.config.id2label == {0: "x", 1: "y", 2: "z"}
    assert loaded.model.config.label2id == {"x": 0, "y": 1, "z": 2}
    assert not said()
    loaded.model.save_pretrained(tmp_path / "b")
    make_portable(tmp_path / "b")
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "b")
    assert again.config.id2label == {0: "x", 1: "y", 2: "z"}
    assert "label_descriptions" not in json.loads((tmp_path / "b" / "config.json").read_text())


@pytest.mark.parametrize("labels", [[], ["cat", "cat"]])
def test_labels_must_be_distinct(labels):
    with pytest.raises(PruningError, match="labels must be distinct"):
        load_image_model("cifar_resnet8", labels)


def test_half_precision_is_loaded_as_float32(tmp_path):
    save_family("ViT", tmp_path).bfloat16().save_pretrained(tmp_path)
    assert {p.dtype for p in load_image_model(str(tmp_path), LABELS).model.parameters()} == {torch.float32}
    assert {p.dtype for p in load_image_model(str(tmp_path), LABELS, from_scratch=True).model.parameters()} == {
        torch.float32
    }


@pytest.mark.parametrize("kind", [*FAMILIES, "test_vit", "cifar_resnet8"])
def test_from_scratch_reads_no_weights(kind, tmp_path, said):
    saved = save_family(kind, tmp_path) if kind in FAMILIES else save_timm(kind, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    torch.manual_seed(1)
    loaded = load_image_model(str(tmp_path), LABELS, from_scratch=True, image_size=64)
    assert loaded.settings.size == 64
    assert logits(loaded.model, images(64)).shape == (2, 3)
    assert not said()
    old = saved.state_dict()
    new = {key.removeprefix("timm_model."): tensor for key, tensor in loaded.model.state_dict().items()}
    weights = [key for key in old if key.endswith("weight") and old[key].ndim > 1 and new[key].shape == old[key].shape]
    assert weights
    assert not any(torch.equal(old[key], new[key]) for key in weights)


@pytest.mark.parametrize("name", ["cifar_resnet8", "test_resnet"])
def test_random_weights_are_those_of_timm(name, said):
    torch.manual_seed(3)
    fresh = timm.create_model(name, num_classes=3).state_dict()
    torch.manual_seed(3)
    model = load_image_model(name, LABELS, from_scratch=name.startswith("test")).model
    assert all(torch.equal(fresh[key], tensor) for key, tensor in model.timm_model.state_dict().items())
    expected = [] if name.startswith("test") else [f"{name} has no published weights: it starts from random ones"]
    assert said() == expected


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "ViT"])
def test_images_too_small_for_a_model_are_refused(name, tmp_path):
    if name in FAMILIES:
        save_family(name, tmp_path)
    with pytest.raises(PruningError, match="cannot be made for images of 7 pixels, use another: ") as caught:
        load_image_model(str(tmp_path) if name in FAMILIES else name, LABELS, image_size=7, from_scratch=True)
    assert "\n" not in str(caught.value)
