"""What a saved model expects of its images: what its files say, and not what its architecture was published for."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from support.tiny_models import LABELS

from hf_cyclical import PruningError, load
from hf_cyclical.models import image_processor, image_side, pixels_of

SMALL = {"input_size": [3, 12, 12], "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7], "crop_pct": 1.0}


@pytest.fixture
def folder(tmp_path):
    """As timm saves a model that was made for images of 32 pixels and trained on others."""
    model = timm.create_model("cifar_resnet8", num_classes=3)
    model.pretrained_cfg = dict(model.pretrained_cfg) | SMALL
    model.pretrained_cfg["interpolation"] = "bilinear"
    timm.models.save_for_hf(model, tmp_path, model_config={"label_names": LABELS}, safe_serialization=True)
    return tmp_path


def noise(side):
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8))


def by_hand(image):
    """Of an image that needs no resizing."""
    pixels = torch.tensor(np.asarray(image)).permute(2, 0, 1)[None] / 255
    mean, std = (torch.tensor(SMALL[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    return (pixels - mean) / std


def test_size_and_normalisation_of_a_timm_model_are_those_of_its_config(folder):
    model = load(folder)
    assert image_side(folder, None, model) == 12
    processor = image_processor(folder, None, model)
    torch.testing.assert_close(pixels_of(folder, processor, noise(12)), by_hand(noise(12)))
    assert pixels_of(folder, processor, noise(40)).shape == (1, 3, 12, 12)


def test_a_config_of_old_timm_has_them_beside_the_other_fields(folder):
    config = json.loads((folder / "config.json").read_text())
    config = config.pop("pretrained_cfg") | config
    (folder / "config.json").write_text(json.dumps(config))
    assert image_side(folder, None, load(folder)) == 12


@pytest.mark.parametrize(
    "said",
    [
        *({"input_size": size} for size in ([3, 60000, 60000], [3, -1, 12], [3], "large", 12)),
        *({"crop_pct": part} for part in (1e-9, -1, "all")),  # the image is resized to size / part, then cropped
    ],
)
def test_a_size_that_cannot_be_right_is_refused(folder, said):
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"] |= said
    (folder / "config.json").write_text(json.dumps(config))
    model = load(folder)
    with pytest.raises(PruningError, match="save it again"):
        image_processor(folder, None, model)
    with pytest.raises(PruningError, match="save it again"):
        image_side(folder, None, model)
