"""Masks as pictures, pixel by pixel."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.made_reports import made
from support.tiny_models import save_pruned

from hf_cyclical import PruningError, pack_folder
from hf_cyclical.show.masks import EMPTY, FLOOR, KEPT, PRUNED, mask_layers, mask_picture, picture_of


def counts(image):
    """Pixels of each colour."""
    colours, numbers = np.unique(np.asarray(image).reshape(-1, 3), axis=0, return_counts=True)
    return {tuple(map(int, colour)): int(n) for colour, n in zip(colours, numbers, strict=True)}


def test_a_linear_map_by_hand():
    """Two outputs of three inputs: one has a single weight, which is its floor, one has two."""
    mask = torch.tensor([[0, 0, 1], [1, 1, 0]]).bool()
    pixels = np.asarray(picture_of(mask, row_floor=1))
    assert pixels.shape == (480, 720, 3)  # 240 pixels a weight
    found = [[tuple(pixels[120 + 240 * y, 120 + 240 * x]) for x in range(3)] for y in range(2)]
    assert found == [[FLOOR, FLOOR, KEPT], [KEPT, KEPT, PRUNED]]


def test_a_convolution_by_hand():
    """Two filters of two inputs, kernels of 2 x 2, of which the second filter has none: tiles with lines between."""
    mask = torch.zeros(2, 2, 2, 2).bool()
    mask[0, 1, 0, 1] = True
    pixels = np.asarray(picture_of(mask))
    unit = pixels.shape[0] // 5  # 2 + a line + 2
    grid = pixels[unit // 2 :: unit, unit // 2 :: unit]
    white = (255, 255, 255)
    first = [PRUNED, PRUNED, white]
    assert [tuple(c) for c in grid[0]] == [*first, PRUNED, KEPT]
    assert [tuple(c) for c in grid[1]] == [*first, PRUNED, PRUNED]
    assert [tuple(c) for c in grid[2]] == [white] * 5
    assert [tuple(c) for c in grid[3]] == [EMPTY, EMPTY, white, EMPTY, EMPTY]


def test_the_shape_of_what_is_drawn_fits_a_page_and_loses_no_weight():
    """Depthwise filters have one input: they stand in several columns."""
    mask = torch.rand(96, 1, 3, 3, generator=torch.Generator().manual_seed(0)) < 0.3
    image = picture_of(mask)
    assert 0.4 < image.width / image.height < 2.5
    unit = counts(image)[KEPT] / int(mask.sum())
    assert unit == int(unit) == round(unit**0.5) ** 2


@pytest.mark.parametrize("shape", [(1, 1), (3, 4, 5), (2, 3, 2, 2, 2), (5000, 3000), (1, 4000, 1, 1)])
def test_any_shape_can_be_drawn(shape):
    assert max(picture_of(torch.ones(shape).bool()).size) <= 2400


@pytest.fixture
def folder(tmp_path):
    return save_pruned("ResNet", tmp_path / "model")


def test_a_layer_of_a_saved_model_packed_or_not(folder, tmp_path):
    pack_folder(folder, tmp_path / "packed")
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in mask_layers(folder, None) if weights[name].dim() == 4 and weights[name].shape[1] > 3)
    kept = int((weights[name] != 0).sum())
    drawn = mask_picture(folder, name, row_floor=1)
    assert f"{kept:,} of {weights[name].numel():,} weights kept" in drawn.caption
    unit = counts(drawn.image)[KEPT] / kept
    assert unit == round(unit**0.5) ** 2
    again = mask_picture(tmp_path / "packed", name, row_floor=1)
    assert (again.caption, again.image.tobytes()) == (drawn.caption, drawn.image.tobytes())


def test_layers_are_those_that_the_report_says_were_pruned(folder):
    name = mask_layers(folder, None)[1]
    assert mask_layers(folder, made(layers=1, name=name)) == [name]
    assert mask_layers(folder, made(layers=1, name="timm_model." + name)) == [name]


def test_a_layer_that_is_not_there_or_a_file_that_is_a_link_is_refused(folder, tmp_path):
    with pytest.raises(PruningError, match=r"has no layer 'nothing\.weight'"):
        mask_picture(folder, "nothing.weight", 0)
    (folder / "model.safetensors").rename(tmp_path / "secret")
    (folder / "model.safetensors").symlink_to(tmp_path / "secret")
    with pytest.raises(PruningError, match="link to elsewhere"):
        mask_layers(folder, None)
