"""What a card tells of the work of a model: multiply-adds, worked out by hand, and its speed if that was measured."""

import json
import re

import pytest
import torch
from support.pushing import copy_run, finished_run
from support.stamped import edit_json
from support.tiny_models import prune, save_family, save_timm
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hf_cyclical import PruningError
from hf_cyclical.hub import MultiplyAdds, build_folder, count_multiply_adds, read_speed, record_speed
from hf_cyclical.hub.multiply_adds import count_in_folder
from hf_cyclical.models import load_packed_model

SPEED = {
    "processor": "Some CPU @ 2 GHz",
    "threads": 1,
    "shape": [3, 32, 32],
    "timings": [
        {"engine": "torch", "batch": 1, "milliseconds": 4.25},
        {"engine": "hf_cyclical", "batch": 1, "milliseconds": 0.5},
    ],
    "layers": [],
    "torch_operations": [],
}


class Worked(nn.Module):
    """Small enough to be counted by hand, for images of 3 x 8 x 8."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)  # to 4 x 4: 16 places, 4 * 3 * 9 = 108 weights
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)  # 16 places, 4 * 9 = 36 weights
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)  # from 4 x 4: 16 places, 4 * 2 * 4 = 32 weights
        self.norm = nn.BatchNorm2d(2)  # does not count
        self.head = nn.Linear(2 * 8 * 8, 5)  # 1 place, 640 weights

    def forward(self, x):
        return self.head(self.norm(self.up(self.depthwise(self.conv(x)))).flatten(1))


def test_an_example_by_hand():
    model = Worked()
    dense = 16 * 108 + 16 * 36 + 16 * 32 + 640
    assert count_multiply_adds(model, (3, 8, 8)) == MultiplyAdds(dense, dense, (3, 8, 8))
    with torch.no_grad():
        model.conv.weight.view(-1)[:100] = 0  # 8 are left
        model.depthwise.weight[1:] = 0  # 9 are left
        model.up.weight[:, 0] = 0  # 16 are left
        model.head.weight[0] = 0  # 512 are left
        model.conv.bias.zero_()  # which is added, not multiplied by
    assert count_multiply_adds(model, (3, 8, 8)) == MultiplyAdds(3456, 16 * 8 + 16 * 9 + 16 * 16 + 512, (3, 8, 8))


def test_a_layer_that_is_used_twice_counts_twice():
    layer = nn.Linear(4, 4)
    assert count_multiply_adds(nn.Sequential(nn.Flatten(), layer, layer), (1, 2, 2)).dense == 32


@pytest.mark.parametrize("name", ["ResNet", "ViT", "Swin", "MobileNetV2", "test_vit", "test_convnext", "cifar_resnet8"])
def test_as_torch_counts(name, tmp_path):
    """Of torch's own count, those of products with weights: a multiply-add is two operations there."""
    (save_family if name[0].isupper() else save_timm)(name, tmp_path)
    counted = count_in_folder(tmp_path)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        load_packed_model(tmp_path)(torch.zeros(1, *counted.shape))
    with_weights = [torch.ops.aten.convolution, torch.ops.aten.addmm, torch.ops.aten.mm]
    flops = counter.get_flop_counts()["Global"]
    assert counted.dense == sum(flops.get(operation, 0) for operation in with_weights) // 2
    assert 0 < counted.sparse <= counted.dense


def test_zeros_of_a_family(tmp_path):
    model = save_family("ViT", tmp_path)
    prune(model, 0.9)
    model.save_pretrained(tmp_path)
    counted = count_in_folder(tmp_path)
    assert counted.shape == (3, 32, 32)
    assert counted.sparse / counted.dense == pytest.approx(0.1, abs=0.01)


@pytest.fixture
def run(tmp_path):
    return copy_run(finished_run(), tmp_path / "run")


def card_of(run, tmp_path):
    return (build_folder(run, tmp_path / "built", repo_id="user/model")["main"] / "README.md").read_text()


class TestCards:
    def test_tell_the_multiply_adds(self, run, tmp_path):
        card = card_of(run, tmp_path)
        counted = count_in_folder(tmp_path / "built" / "main")
        assert "| multiply-adds for an image of 3 x 32 x 32 | | of the dense ones |" in card
        assert f"| dense | {counted.dense:,} | |" in card
        row = re.search(r"\| without those by a zero \| ([\d,]+) \| ([\d.]+) % \|", card)
        assert int(row[1].replace(",", "")) == counted.sparse < counted.dense / 2
        assert float(row[2]) == pytest.approx(100 * counted.sparse / counted.dense, abs=0.005)
        assert "How fast it is" not in card

    def test_tell_a_speed_that_was_measured(self, run, tmp_path):
        record_speed(run, SPEED)
        card = card_of(run, tmp_path)
        assert "| `torch` | 1 | 4.25 |\n| `hf_cyclical` | 1 | 0.5 |" in card
        assert "Measured on `Some CPU @ 2 GHz` with 1 thread and images of 3 x 32 x 32" in card
        assert not (tmp_path / "built" / "main" / "speed.json").exists()

    def test_say_nothing_of_the_speed_of_other_weights(self, run, tmp_path):
        record_speed(run, SPEED)
        edit_json(run / "speed.json", lambda speed: speed.update(weights_sha256="0" * 64))
        assert read_speed(run) is None
        assert "How fast it is" not in card_of(run, tmp_path)

    def test_are_not_made_of_what_a_processor_is_called(self, run, tmp_path):
        timings = [{"engine": "a|b\n# x", "batch": 1, "milliseconds": 1.0}]
        record_speed(run, SPEED | {"processor": "<b>`x`\n\n# Head\x1b[2J", "timings": timings})
        card = card_of(run, tmp_path)
        assert "\n# Head" not in card
        assert "\n# x" not in card
        assert "\x1b" not in card

    @pytest.mark.parametrize("change", [{"timings": 3}, {"threads": "x"}, {"shape": None}, {"timings": [{}]}])
    def test_refuse_what_is_no_measurement(self, run, change):
        record_speed(run, SPEED)
        edit_json(run / "speed.json", lambda speed: speed.update(change))
        with pytest.raises(PruningError, match=r"speed.json in .* is not a measurement: measure again, or delete it"):
            read_speed(run)

    def test_a_folder_without_weights_has_no_speed(self, tmp_path):
        with pytest.raises(PruningError, match=r"there is no model.safetensors"):
            record_speed(tmp_path, SPEED)


def test_the_measurement_has_the_hash_of_the_weights(run):
    written = json.loads(record_speed(run, SPEED).read_text())
    assert written.keys() == {"weights_sha256", "processor", "threads", "shape", "timings"}
    assert read_speed(run)["timings"] == [("torch", 1, 4.25), ("hf_cyclical", 1, 0.5)]
