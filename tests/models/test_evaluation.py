"""What a run evaluates on is what whoever uses the saved model gets: the same pixels, the same scores."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from support.made_data import all_of, folder_of, load, rows
from support.tiny_models import FAMILIES, LABELS, save_family, save_timm
from timm.data import create_transform, resolve_data_config
from torch import nn
from transformers import AutoImageProcessor, TimmWrapperImageProcessor, TrainingArguments, pipeline

from hf_cyclical import CyclicalPruningTrainer, PruningConfig
from hf_cyclical.data import eval_transform
from hf_cyclical.models import load_image_model, make_portable
from hf_cyclical.training import accuracy, rank_classes

TIMM = ["test_resnet", "test_vit", "test_convnext", "test_efficientnet", "cifar_resnet8"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def noise(height, width, seed=0):
    """Noise that a resize does not average away: every pixel of 4x4 squares is the same."""
    coarse = np.random.default_rng(seed).integers(0, 256, (-(-height // 4), -(-width // 4), 3), dtype=np.uint8)
    return coarse.repeat(4, 0).repeat(4, 1)[:height, :width]


def timm_configs():
    """One of timm's pretrained configs for every way to resize and crop that they have."""
    found = {}
    for name in timm.list_pretrained():
        data = resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        if data["input_size"][1] == data["input_size"][2]:
            found.setdefault(tuple(data[key] for key in ("input_size", "crop_pct", "interpolation", "crop_mode")), name)
    return sorted(found.values())


def test_pixels_are_those_of_timm_for_all_its_configs():
    image = Image.fromarray(noise(70, 90))
    names = timm_configs()
    assert len(names) > 100
    for name in names:
        cfg = timm.get_pretrained_cfg(name).to_dict()
        expected = create_transform(**resolve_data_config(pretrained_cfg=cfg))(image)
        seen = eval_transform(TimmWrapperImageProcessor(cfg, name.partition(".")[0]))(image)
        assert torch.equal(seen, expected), name


@pytest.mark.parametrize(("crop_pct", "edge"), [(0.875, 36), (0.9, 35), (0.95, 33), (1.0, 32)])
@pytest.mark.parametrize("kind", ["transformers", "timm"])
def test_the_edge_is_rounded_down(kind, crop_pct, edge, tmp_path):
    """An image of that edge is cropped and not resized: 32 / 0.875 = 36.57 is 36, as in both libraries."""
    if kind == "timm":
        save_timm("cifar_resnet8", tmp_path, pretrained_cfg={"crop_pct": crop_pct, "input_size": (3, 32, 32)})
    else:
        save_family("ResNet", tmp_path)
        processor = AutoImageProcessor.from_pretrained(tmp_path)
        type(processor)(size={"shortest_edge": 32}, crop_pct=crop_pct).save_pretrained(tmp_path)
    images = noise(6 * edge, edge).reshape(6, edge, edge, 3)
    data = load(folder_of(tmp_path / "d", train=rows(images), test=rows(images)), augment="imagenet")
    loaded = load_image_model(tmp_path, LABELS, whole=data.whole)
    seen = all_of(data.for_model(loaded, seed=0)[1])["pixel_values"].numpy()
    start = round((edge - 32) / 2) if kind == "timm" else (edge - 32) // 2
    mean, std = (np.array(value)[:, None, None] for value in (loaded.settings.mean, loaded.settings.std))
    expected = (images[:, start : start + 32, start : start + 32].transpose(0, 3, 1, 2) / 255 - mean) / std
    np.testing.assert_allclose(seen, expected, atol=1e-5)


@torch.no_grad()
def tell_apart(model, pixels):
    """Random weights whose scores differ between images: normalised by these, and with a larger head."""
    for i, p in enumerate(model.parameters()):
        if p.ndim > 1:
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(i)) / p[0].numel() ** 0.5)
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
    model.train()(pixels)
    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    head.weight.mul_(1 / model.eval()(pixels).logits.std(0).mean())
    head.bias.sub_(model(pixels).logits.mean(0))


def saved_run(name, folder, data):
    """Evaluate a model as a run does, save it as a run does, and return the accuracy and scores."""
    save_family(name, folder / "base") if name in FAMILIES else save_timm(name, folder / "base")
    loaded = load_image_model(str(folder / "base"), LABELS, image_size=data.image_size, whole=data.whole)
    train, evaluation = data.for_model(loaded, seed=0)
    tell_apart(loaded.model, all_of(evaluation)["pixel_values"])
    trainer = CyclicalPruningTrainer(
        loaded.model,
        TrainingArguments(
            str(folder / "run"), report_to="none", use_cpu=True, disable_tqdm=True, remove_unused_columns=False
        ),
        pruning=PruningConfig(target_sparsity=0.5),
        train_dataset=train,
        eval_dataset=evaluation,
        data_collator=data.collate,
        processing_class=loaded.processor,
        compute_metrics=accuracy,
        preprocess_logits_for_metrics=rank_classes,
    )
    reported = trainer.evaluate()["eval_accuracy"]
    with torch.no_grad():
        scores = loaded.model.eval()(all_of(evaluation)["pixel_values"]).logits.softmax(-1)
    trainer.save_model(str(folder / "saved"))
    make_portable(folder / "saved")
    return reported, scores


@pytest.mark.parametrize("sizes", [[(48, 64), (70, 50), (33, 33), (90, 41)], [(32, 32)] * 4, [(28, 20)] * 4])
@pytest.mark.parametrize("name", [*FAMILIES, *TIMM])
def test_a_reported_accuracy_is_that_of_the_pipeline(name, sizes, tmp_path):
    images = [noise(height, width, seed) for seed, (height, width) in enumerate(3 * sizes)]
    labels = [(i * i) % 3 for i in range(len(images))]
    split = rows(images, labels)
    data = load(folder_of(tmp_path / "d", train=split, test=split))
    reported, scores = saved_run(name, tmp_path, data)
    classify = pipeline("image-classification", str(tmp_path / "saved"), device="cpu")
    answers = classify([Image.fromarray(image) for image in images], top_k=3)
    for answer, expected in zip(answers, scores, strict=True):
        found = {row["label"]: row["score"] for row in answer}
        np.testing.assert_allclose([found[label] for label in LABELS], expected, atol=3e-4)
    assert len({round(answer[0]["score"], 4) for answer in answers}) > 6  # the images are told apart
    right = [answer[0]["label"] == LABELS[label] for answer, label in zip(answers, labels, strict=True)]
    assert reported == pytest.approx(sum(right) / len(right))
