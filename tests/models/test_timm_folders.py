"""Folders as timm itself writes them, today and years ago, over its families."""

import json

import pytest
import timm
import torch
from safetensors.torch import load_file
from support.tiny_models import LABELS, images, logits, prune, same
from transformers import AutoModelForImageClassification

from hf_cyclical import PruningError
from hf_cyclical.models import check_image_model, load_image_model, make_portable

# An architecture of each family, with arguments that make it small.
FAMILIES = {
    "resnet18": {"layers": [1] * 4, "channels": [8] * 4},
    "convnext_atto": {"depths": [1, 1, 1, 1], "dims": [8, 8, 8, 8]},
    "vit_tiny_patch16_224": {"embed_dim": 24, "depth": 1, "num_heads": 3, "img_size": 64},
    "deit3_small_patch16_224": {"embed_dim": 24, "depth": 1, "num_heads": 3, "img_size": 64},
    "swin_tiny_patch4_window7_224": {"embed_dim": 12, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 3, 4]},
    "test_efficientnet": {"global_pool": "max"},
    "mobilenetv3_small_050": {"drop_rate": 0.1},
    "cifar_resnet8": {},
}


def save(architecture, folder, **options):
    """A folder by timm's writer, and the model that is in it."""
    torch.manual_seed(0)
    model = timm.create_model(architecture, num_classes=3, **FAMILIES[architecture]).eval()
    options.setdefault("model_args", FAMILIES[architecture])
    timm.models.save_for_hf(model, folder, safe_serialization=True, **options)
    return model


def pixels_for(model):
    return images(model.pretrained_cfg["input_size"][-1] if "swin" in str(type(model)).lower() else 64)


def flatten(folder):
    """Write the config as timm did before it had `pretrained_cfg`."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    inner = config.pop("pretrained_cfg")
    flat = inner | {key: value for key, value in config.items() if key != "label_names"}
    file.write_text(json.dumps(flat | {"labels": LABELS, "classifier": "fc", "hf_hub_id": "org/elsewhere"}))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_folder_of_timms_writer(architecture, tmp_path):
    original = save(architecture, tmp_path, model_config={"label_names": LABELS})
    pixels = pixels_for(original)
    for name in (str(tmp_path), f"local-dir:{tmp_path}"):
        loaded = load_image_model(name, LABELS)
        assert same(logits(loaded.model, pixels), logits(original, pixels))
        assert loaded.base_model is None
        assert loaded.model.config.name_or_path == str(tmp_path)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_an_old_flat_config(architecture, tmp_path):
    original = save(architecture, tmp_path / "old")
    today = load_image_model(tmp_path / "old", LABELS)
    flatten(tmp_path / "old")
    loaded = load_image_model(tmp_path / "old", LABELS)
    pixels = pixels_for(original)
    assert same(logits(loaded.model, pixels), logits(original, pixels))
    assert loaded.settings == today.settings

    pruned = prune(loaded.model)
    loaded.model.save_pretrained(tmp_path / "new")
    make_portable(tmp_path / "new")
    expected = logits(loaded.model, pixels)
    assert pruned
    for again in (
        timm.create_model(f"local-dir:{tmp_path / 'new'}", pretrained=True),
        AutoModelForImageClassification.from_pretrained(tmp_path / "new"),
    ):
        assert same(logits(again, pixels), expected)
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert (
        config["pretrained_cfg"]["input_size"]
        == json.loads((tmp_path / "old" / "config.json").read_text())["input_size"]
    )
    assert "hf_hub_id" not in config["pretrained_cfg"]
    assert set(load_file(tmp_path / "new" / "model.safetensors")) == set(original.state_dict())


def test_what_the_name_of_a_folder_may_be(tmp_path):
    with pytest.raises(PruningError, match="nothing' is a path without a folder: check the path"):
        load_image_model(f"local-dir:{tmp_path / 'nothing'}", LABELS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PruningError, match=r"has no config\.json"):
        check_image_model(f"local-dir:{tmp_path / 'empty'}")


def test_a_model_is_checked_without_its_weights_being_read(tmp_path):
    save("cifar_resnet8", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    check_image_model(tmp_path)
    check_image_model("resnet18", from_scratch=True)
    with pytest.raises(PruningError, match="timm has resnet18"):
        check_image_model("resnet18x")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(PruningError, match="is of type 'bert', no image classifier"):
        check_image_model(tmp_path)
