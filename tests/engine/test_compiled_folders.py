"""Compiling folders, the pipeline of transformers, and a new process."""

import os
import subprocess
import sys

import pytest
import torch
import transformers
from engine.checks import close, images
from support.tiny_models import LABELS, save_pruned

import hf_cyclical
from hf_cyclical import PruningError


@pytest.fixture
def folder(tmp_path):
    return save_pruned("ResNet", tmp_path / "model")


class TestTransformers:
    def test_a_folder_packed_or_not(self, folder, tmp_path):
        hf_cyclical.pack_folder(folder, tmp_path / "packed")
        pixels = images(2, 3, 28, 28)
        original = hf_cyclical.load(folder)
        for source in (folder, str(tmp_path / "packed")):
            output = hf_cyclical.compile(source)(pixel_values=pixels)
            assert type(output).__name__ == "ImageClassifierOutputWithNoAttention"
            close(output.logits, original(pixels).logits.detach())

    def test_labels_give_the_loss(self, folder):
        fast, pixels = hf_cyclical.compile(folder), images(2, 3, 28, 28)
        assert fast(pixels).loss is None
        assert fast(pixels, labels=torch.tensor([0, 1])).loss > 0

    def test_the_pipeline(self, folder):
        processor = transformers.AutoImageProcessor.from_pretrained(folder)
        image = transformers.image_transforms.to_pil_image(images(1, 3, 40, 40)[0].sigmoid().numpy(), do_rescale=True)
        results = [
            transformers.pipeline("image-classification", model=model, image_processor=processor)(image)
            for model in (hf_cyclical.compile(folder), hf_cyclical.load(folder))
        ]
        fast, original = ({row["label"]: row["score"] for row in rows} for rows in results)
        assert set(fast) == set(LABELS)
        assert fast == pytest.approx(original, abs=1e-5)

    def test_a_folder_that_does_not_exist(self):
        with pytest.raises(PruningError, match="neither a folder here nor a Hub id"):
            hf_cyclical.compile("./nothing")


PROGRAM = """
import sys
{before}
import timm, torch, hf_cyclical
model = timm.create_model("cifar_resnet8").eval()
with torch.no_grad():
    model.layer2[0].conv2.weight.zero_()
    model.layer3[0].conv2.weight[::2] = 0
try:
    fast, pixels = hf_cyclical.compile(model), torch.randn(2, 3, 32, 32)
    error = (fast(pixels) - model(pixels)).abs().max()
    print("fine" if error < 1e-3 else error)
except hf_cyclical.PruningError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("before", "result"),
    [
        ("", "fine"),
        ("sys.modules['llvmlite'] = None", 'the engine needs llvmlite: pip install "hf_cyclical[fast]"'),
    ],
    ids=["no compiler on the PATH", "no llvmlite"],
)
def test_a_new_process(before, result, tmp_path):
    environment = os.environ | {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", PROGRAM.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip().splitlines()[-1] == result
