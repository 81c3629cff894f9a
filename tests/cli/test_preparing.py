"""What a run does before it trains: names, files, sizes and folders."""

import json
import re

import numpy as np
import pytest
from PIL import Image
from support.other_tasks import make_detector, make_segmenter
from support.started import SHORT, call
from support.tiny_models import save_family
from transformers import AutoImageProcessor

from hf_cyclical import load_report


def folder_of_images(path, sides=(40, 40), classes=("ox", "yak"), n=12):
    noise = np.random.default_rng(0).integers(0, 256, (n, *sides, 3), dtype=np.uint8)
    for split in ("train", "test"):
        for i, pixels in enumerate(noise):
            file = path / split / classes[i % len(classes)] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
    return path


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def test_a_plan_and_a_refused_run_leave_no_folder(tmp_path):
    out = tmp_path / "runs" / "first"
    assert call("--plan", "--output_dir", out, *SHORT)[0] == 0
    assert not (tmp_path / "runs").exists()
    for refused in (["--max_steps", "1"], ["--exclude", "no.such.layer"], ["--model_name_or_path", "nothing"]):
        assert call("--output_dir", out, *refused)[0] == 2
        assert not (tmp_path / "runs").exists()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "notes.txt").write_text("mine")
    assert call("--plan", "--output_dir", tmp_path / "runs", *SHORT)[0] == 0
    assert (tmp_path / "runs" / "notes.txt").read_text() == "mine"


def test_null_in_a_file_means_the_default(tmp_path):
    plans = []
    for name, text in {
        "null.yaml": "cycles: null\nlearning_rate: null\ntarget_sparsity: ~\nmax_steps: 40\ndense_epochs: 0\n",
        "none.yaml": "max_steps: 40\ndense_epochs: 0\n",
        "null.json": json.dumps({"cycles": None, "max_steps": 40, "dense_epochs": 0}),
    }.items():
        (tmp_path / name).write_text(text)
        code, out, err = call(tmp_path / name, "--plan", "--output_dir", tmp_path / "out")
        assert code == 0, err
        plans.append(out)
    shown = [[line for line in plan.splitlines() if "Estimated" not in line] for plan in plans]
    assert shown[0] == shown[1] == shown[2]


def test_a_wrong_model_is_said_before_data_are_prepared(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_cyclical.data.loading.load_splits", lambda args: pytest.fail("data were prepared"))
    data = folder_of_images(tmp_path / "d")
    code, _, err = call("--model_name_or_path", "resnet18x", "--dataset_name", data, "--output_dir", tmp_path / "out")
    assert code == 2
    assert err.count("\n") == 1
    assert "model 'resnet18x' is no folder, Hub id or timm name: timm has resnet18" in err


@pytest.mark.parametrize(("make", "tag"), [(make_segmenter, "image-segmentation"), (make_detector, "object-detection")])
def test_a_model_of_another_task_is_said_before_data_are_prepared(tmp_path, monkeypatch, make, tag):
    monkeypatch.setattr("hf_cyclical.data.loading.load_splits", lambda args: pytest.fail("data were prepared"))
    make()[0].save_pretrained(tmp_path / "base")
    data = folder_of_images(tmp_path / "d")
    code, _, err = call(
        "--model_name_or_path", tmp_path / "base", "--dataset_name", data, "--output_dir", tmp_path / "out"
    )
    assert (code, err.count("\n")) == (2, 1)
    assert f"is for {tag}, and this is for image classifiers: prune it in Python, with CyclicalPruningTrainer" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["trained", "from_scratch"])
def test_the_image_size_is_that_of_training_evaluation_and_processor(tmp_path, kind):
    labels = ["ox", "yak"]
    save_family("ResNet", tmp_path / "base", labels)
    data = folder_of_images(tmp_path / "d", (100, 100))
    arguments = [
        "--model_name_or_path",
        tmp_path / "base",
        "--dataset_name",
        data,
        "--image_size",
        48,
        "--max_steps",
        8,
    ]
    arguments += ["--cycles", 2, "--per_device_train_batch_size", 4, "--output_dir", tmp_path / "out"]
    arguments += ["--from_scratch"] if kind == "from_scratch" else []
    code, out, err = call(*arguments)
    assert code == 0, err
    assert "images of 48x48 pixels, augmentation imagenet" in out
    processor = AutoImageProcessor.from_pretrained(tmp_path / "out")
    assert processor(Image.new("RGB", (90, 70)), return_tensors="pt")["pixel_values"].shape == (1, 3, 48, 48)
    code, _, err = call("--image_size", "0")
    assert (code, "image_size is 0, and must be at least 1" in err) == (2, True)


def test_the_plan_says_what_it_trains_on_and_how_long(tmp_path):
    code, out, err = call("--plan", "--output_dir", tmp_path / "out", *SHORT, "--holdout", 0.25, "--eval_steps", 8)
    assert code == 0, err
    images = (
        "digits: 675 images to train on, 223 images to evaluate on (25% of the training images, held out), 10 classes"
    )
    assert images in out
    assert "images of 8x8 pixels, augmentation " in out
    # The dense model and two cycles, and nothing more as no eval_strategy was given.
    assert re.search(r"Estimated time: \S+ (s|minutes) \(24 updates of \S+ s, 3 evaluations of \S+ s, as measured", out)

    save_family("ViT", tmp_path / "base", ["ox", "yak"])
    data = folder_of_images(tmp_path / "d", (100, 80), n=6)
    arguments = ["--model_name_or_path", tmp_path / "base", "--dataset_name", data, "--plan", "--max_steps", 8]
    arguments += ["--cycles", 2, "--per_device_train_batch_size", 2, "--eval_strategy", "steps", "--eval_steps", 2]
    code, out, err = call(*arguments, "--output_dir", tmp_path / "out")
    assert code == 0, err
    assert f"{data}: 6 images to train on, 6 images to evaluate on (split test), 2 classes" in out
    assert "images of 32x32 pixels, augmentation imagenet" in out
    assert "8 updates of" in out
    assert "6 evaluations of" in out  # after 0, 2, 4, 6 and 8 updates, and after the first cycle's 3
    code, out, err = call(*arguments, "--streaming", "--output_dir", tmp_path / "out")
    assert code == 0, err
    assert f"{data}: a stream of images to train on, a stream of images to evaluate on (split test), 2 classes" in out
    assert "as measured now; evaluations not counted)" in out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("holdout", [True, False])
def test_a_card_says_that_images_were_held_out(tmp_path, holdout):
    arguments = ["--holdout", 0.25] if holdout else []
    code, _, err = call("--output_dir", tmp_path / "out", *SHORT, *arguments)
    assert code == 0, err
    card = (tmp_path / "out" / "README.md").read_text()
    assert ("Measured on a part of the training images that was held out of `digits`" in card) == holdout
    assert ("Measured on the evaluation images of `digits`" in card) != holdout
    assert ("metric" not in card.split("---")[1]) == holdout
    assert load_report(tmp_path / "out").about.get("holdout") == (0.25 if holdout else None)
