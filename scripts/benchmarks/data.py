"""The speed of small images."""

import argparse
import io
import tempfile
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from hf_cyclical.data import DataArguments, load_image_data
from hf_cyclical.models import load_image_model

from .common import Row, row, seconds, take_turns

IMAGES = 5000
BATCH = 128


def small_images(options: argparse.Namespace) -> list[Row]:
    """An epoch of 32x32 PNG images, cropped, mirrored and normalised, against `with_transform` with PIL.

    Both run in one process through a DataLoader that shuffles. The decoding that ours does once, before the first
    epoch, is not in it.
    """
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        png_images().to_parquet(Path(folder) / "train.parquet")
        data = load_image_data(DataArguments(dataset_name=folder, max_train_samples=IMAGES))
        model = load_image_model("cifar_resnet8", data.labels, image_size=data.image_size)
        ours, _ = data.for_model(model, seed=0)
        theirs = usual_images(folder)
        loaders = [
            DataLoader(dataset, BATCH, shuffle=True, collate_fn=collate)
            for dataset, collate in ((ours, data.collate), (theirs, stack))
        ]
        turns = take_turns(*(partial(seconds, partial(exhaust, loader)) for loader in loaders), 3)
    speeds = [(len(ours) / a, len(theirs) / b) for a, b in turns]
    return [row("ours / with_transform", "images/s", speeds, (">=", 10))]


def png_images() -> datasets.Dataset:
    pixels = np.random.default_rng(0).integers(0, 256, (2 * IMAGES, 32, 32, 3), dtype=np.uint8)
    encoded = []
    for image in pixels:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "png")
        encoded.append({"bytes": file.getvalue(), "path": None})
    features = datasets.Features(img=datasets.Image(), label=datasets.ClassLabel(num_classes=10))
    return datasets.Dataset.from_dict(
        {"img": encoded, "label": [i % 10 for i in range(len(pixels))]}, features=features
    )


def usual_images(folder: str) -> datasets.Dataset:
    transform = v2.Compose(
        [
            v2.RandomCrop(32, padding=4),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26)),
        ]
    )
    rows = datasets.load_dataset(folder, split="train").select(range(IMAGES))
    return rows.with_transform(
        lambda examples: {"pixel_values": [transform(image) for image in examples["img"]], "labels": examples["label"]}
    )


def stack(examples: list[dict]) -> dict[str, torch.Tensor]:
    return {
        "pixel_values": torch.stack([example["pixel_values"] for example in examples]),
        "labels": torch.tensor([example["labels"] for example in examples]),
    }


def exhaust(loader: DataLoader) -> None:
    for _ in loader:
        pass
