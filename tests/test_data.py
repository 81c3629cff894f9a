"""Image data: what is found in a data set, how it is augmented, and what is refused."""

import io
import itertools
import logging
import traceback
from types import SimpleNamespace

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image, List, Value
from PIL import Image as PILImage
from torch.utils.data import DataLoader
from torchvision.transforms import v2
from transformers import HfArgumentParser, Trainer, TrainingArguments

from hf_cyclical.callback import SetEpochCallback
from hf_cyclical.core import PruningError
from hf_cyclical.data import (
    DataArguments,
    SingleImages,
    StreamedImages,
    TensorImages,
    load_image_data,
    loading,
    ready_batch,
)
from hf_cyclical.data.draws import draw, image_keys
from hf_cyclical.data.transforms import crop_and_flip

NAMES = ["ant", "bee", "cow"]
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """No network, no waiting, and a cache that goes away."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)
    datasets.disable_progress_bars()


def settings(size=16, interpolation="bilinear", crop_pct=0.875):
    return SimpleNamespace(size=size, mean=MEAN, std=STD, interpolation=interpolation, crop_pct=crop_pct)


def pixels(n, height=16, width=16, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def png(array):
    file = io.BytesIO()
    PILImage.fromarray(array).save(file, "png")
    return file.getvalue()


def rows(images, labels=None, label_type=None, image="picture", label="kind", **others):
    """A data set with odd column names; the first column is none that is looked for."""
    columns = {"remark": [0.5] * len(images), image: [{"bytes": png(i), "path": None} for i in images]}
    columns[label] = [i % len(NAMES) for i in range(len(images))] if labels is None else labels
    features = {"remark": Value("float32"), image: Image(), label: label_type or ClassLabel(names=NAMES)}
    for name, (values, kind) in others.items():
        columns[name], features[name] = values, kind
    return Dataset.from_dict(columns, features=Features(features))


def tampered(split, column, row, value):
    """The same rows with a value in them that `datasets` would not let in."""
    table = split if isinstance(split, pa.Table) else split.data.table
    field = table.schema.field(column)
    values = table.column(column).to_pylist()
    values[row] = value
    return table.set_column(table.schema.get_field_index(column), field, pa.array(values, field.type))


def folder_of(path, **splits):
    """A folder of parquet files; a list makes several files of a split."""
    path.mkdir(exist_ok=True)
    for name, parts in splits.items():
        parts = parts if isinstance(parts, list) else [parts]
        for i, part in enumerate(parts):
            file = path / f"{name}-{i:05d}-of-{len(parts):05d}.parquet"
            pq.write_table(part, file) if isinstance(part, pa.Table) else part.to_parquet(file)
    return str(path)


def load(path, seed=42, **arguments):
    return load_image_data(DataArguments(dataset_name=str(path), **arguments), seed=seed)


def all_of(dataset):
    return dataset.__getitems__(list(range(len(dataset))))


def as_model_takes(array, size=None):
    """The oracle of evaluation: torchvision, one PIL image at a time."""
    steps = [] if size is None else [v2.Resize(size), v2.CenterCrop(size)]
    steps += [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose(steps)(PILImage.fromarray(array))


class TestWhatIsFound:
    def test_columns_by_their_features(self, tmp_path):
        train, test = pixels(9), pixels(6, seed=1)
        data = load(folder_of(tmp_path / "d", train=rows(train), test=rows(test)))
        assert data.labels == NAMES
        assert data.image_size == 16
        assert data.augment == "cifar"
        assert data.name == str(tmp_path / "d")
        assert data.collate is ready_batch
        assert torch.equal(data.train.images, torch.from_numpy(train).permute(0, 3, 1, 2))
        assert torch.equal(data.eval.images, torch.from_numpy(test).permute(0, 3, 1, 2))
        assert data.train.labels.tolist() == [0, 1, 2] * 3

    def test_columns_by_name(self, tmp_path):
        other = {"back": ([{"bytes": png(i), "path": None} for i in pixels(6, seed=1)], Image())}
        other["second"] = ([1, 0] * 3, ClassLabel(names=["no", "yes"]))
        path = folder_of(tmp_path / "d", train=rows(pixels(6), **other), test=rows(pixels(6), **other))
        data = load(path, image_column_name="back", label_column_name="second")
        assert data.labels == ["no", "yes"]
        assert torch.equal(data.train.images[3], torch.from_numpy(pixels(6, seed=1)[3]).permute(2, 0, 1))
        with pytest.raises(PruningError, match="columns picture, back all hold images: choose one with image_col"):
            load(path)
        with pytest.raises(PruningError, match="columns kind, second all hold classes: choose one with label_col"):
            load(path, image_column_name="back")

    def test_fine_labels_of_cifar100(self, tmp_path):
        coarse = {"coarse_label": ([0, 1] * 3, ClassLabel(names=["small", "large"]))}
        data = load(folder_of(tmp_path / "d", train=rows(pixels(6), label="fine_label", **coarse)), eval_fraction=0.5)
        assert data.labels == NAMES

    @pytest.mark.parametrize(
        ("values", "kind", "names"),
        [
            ([10, 2, 10, 2, 33, 2], Value("int32"), ["2", "10", "33"]),
            (["fox", "elk", "fox", "elk", "elk", "gnu"], Value("string"), ["elk", "fox", "gnu"]),
            ([True, False] * 3, Value("bool"), ["False", "True"]),
        ],
    )
    def test_labels_without_names(self, tmp_path, values, kind, names):
        split = rows(pixels(6), values, kind)
        data = load(folder_of(tmp_path / "d", train=split, test=split))
        assert data.labels == names
        assert [names[code] for code in data.train.labels] == [str(value) for value in values]

    @pytest.mark.parametrize("kind", [Value("binary"), {"bytes": Value("binary"), "path": Value("string")}])
    def test_images_that_other_tools_wrote(self, tmp_path, kind):
        encoded = [png(i) if isinstance(kind, Value) else {"bytes": png(i), "path": None} for i in pixels(6)]
        split = Dataset.from_dict(
            {"raw": encoded, "y": [0, 1] * 3}, features=Features({"raw": kind, "y": ClassLabel(names=["no", "yes"])})
        )
        data = load(folder_of(tmp_path / "d", train=split, test=split), image_column_name="raw")
        assert torch.equal(data.train.images, torch.from_numpy(pixels(6)).permute(0, 3, 1, 2))

    def test_a_folder_of_images(self, tmp_path):
        images = pixels(8)
        for i, image in enumerate(images):
            file = tmp_path / "d" / ("train" if i < 4 else "test") / ("ox", "yak")[i % 2] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            PILImage.fromarray(image).save(file)
        data = load(tmp_path / "d")
        assert data.labels == ["ox", "yak"]
        assert len(data.train.labels) == len(data.eval.labels) == 4
        seen = {
            image.numpy().tobytes(): int(label)
            for image, label in zip(data.train.images, data.train.labels, strict=True)
        }
        assert all(seen[image.transpose(2, 0, 1).tobytes()] == i % 2 for i, image in enumerate(images[:4]))

    def test_digits(self):
        data = load("digits")
        assert data.labels == [str(i) for i in range(10)]
        assert (data.image_size, data.augment) == (8, "none")
        assert data.train.images.shape == (898, 3, 8, 8)
        assert data.eval.images.shape == (899, 3, 8, 8)
        train, _ = data.for_model(settings(8), seed=0)
        assert torch.equal(train[3]["pixel_values"], train.__getitems__([7, 3])["pixel_values"][1])
        assert load("digits", augment="cifar", max_train_samples=5).train.images.shape[0] == 5

    @pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "LA", "CMYK"])
    def test_other_modes_become_rgb(self, tmp_path, mode):
        image = PILImage.fromarray(pixels(1)[0]).convert(mode)
        file = io.BytesIO()
        image.save(file, "tiff" if mode == "CMYK" else "png")
        split = rows(pixels(5))
        for row in range(5):
            split = tampered(split, "picture", row, {"bytes": file.getvalue(), "path": None})
        data = load(folder_of(tmp_path / "d", train=split, test=split))
        assert torch.equal(data.train.images[0], v2.functional.pil_to_tensor(image.convert("RGB")))

    def test_sixteen_bits_are_not_cut_off(self, tmp_path):
        deep = np.arange(256, dtype=np.uint16).reshape(16, 16) * 256 + 77
        split = rows([deep] * 4)
        data = load(folder_of(tmp_path / "d", train=split, test=split))
        assert torch.equal(data.train.images[0, 0].flatten(), torch.arange(256, dtype=torch.uint8))


class TestSplits:
    def test_validation_comes_before_test(self, tmp_path):
        parts = {"train": rows(pixels(9)), "test": rows(pixels(7)), "validation": rows(pixels(5))}
        path = folder_of(tmp_path / "d", **parts)
        assert len(load(path).eval.labels) == 5
        assert len(load(path, eval_split="test").eval.labels) == 7
        assert len(load(path, train_split="validation").train.labels) == 5

    def test_one_is_made(self, tmp_path, caplog):
        images = pixels(60)
        path = folder_of(tmp_path / "d", train=rows(images, [0] * 30 + [1] * 20 + [2] * 10))
        with caplog.at_level(logging.INFO, "hf_cyclical"):
            data = load(path, eval_fraction=0.3)
        assert "18 of the 60 images of split 'train' are for evaluation (the same part of each class)" in caplog.text
        assert data.eval.labels.bincount().tolist() == [9, 6, 3]
        held_out, kept = ({image.numpy().tobytes() for image in s.images} for s in (data.eval, data.train))
        assert len(held_out | kept) == 60
        assert torch.equal(load(path, eval_fraction=0.3).eval.images, data.eval.images)
        assert not torch.equal(load(path, eval_fraction=0.3, seed=1).eval.images, data.eval.images)

    def test_one_is_made_at_random_where_a_class_is_too_small(self, tmp_path, caplog):
        path = folder_of(tmp_path / "d", train=rows(pixels(20), [0] * 10 + [1] * 9 + [2]))
        with caplog.at_level(logging.INFO, "hf_cyclical"):
            data = load(path)
        assert "at random" in caplog.text
        assert (len(data.train.labels), len(data.eval.labels)) == (18, 2)

    def test_fewer_images(self, tmp_path):
        path = folder_of(tmp_path / "d", train=rows(pixels(30)), test=rows(pixels(20, seed=1)))
        data = load(path, max_train_samples=12, max_eval_samples=50)
        assert (len(data.train.labels), len(data.eval.labels)) == (12, 20)
        everything = [image.transpose(2, 0, 1).tobytes() for image in pixels(30)]
        found = [everything.index(image.numpy().tobytes()) for image in data.train.images]
        assert [i % 3 for i in found] == data.train.labels.tolist()
        assert len(set(found)) == 12
        assert torch.equal(load(path, max_train_samples=12).train.images, data.train.images)
        assert not torch.equal(load(path, max_train_samples=12, seed=1).train.images, data.train.images)


class TestHowImagesAreKept:
    def test_large_ones_stay_encoded(self, tmp_path):
        data = load(folder_of(tmp_path / "d", train=rows(pixels(4, 70, 90)), test=rows(pixels(4, 70, 90))))
        train, evaluation = data.for_model(settings(32), seed=0)
        assert (data.image_size, data.augment) == (None, "imagenet")
        assert isinstance(train, SingleImages)
        assert isinstance(evaluation, SingleImages)
        assert all_of(train)["pixel_values"].shape == (4, 3, 32, 32)

    def test_those_of_several_sizes_too(self, tmp_path):
        mixed = rows([*pixels(3), *pixels(3, 20, 18)])
        data = load(folder_of(tmp_path / "d", train=mixed, test=rows(pixels(4))))
        train, evaluation = data.for_model(settings(), seed=0)
        assert (data.image_size, data.augment) == (None, "imagenet")
        assert isinstance(train, SingleImages)
        assert isinstance(evaluation, TensorImages)
        assert all_of(train)["pixel_values"].shape == (6, 3, 16, 16)
        assert all_of(evaluation)["pixel_values"].shape == (4, 3, 16, 16)

    def test_those_that_would_fill_the_memory_too(self, tmp_path, monkeypatch):
        monkeypatch.setattr(loading, "MOST_BYTES", 4 * 16 * 16 * 3 - 1)
        data = load(folder_of(tmp_path / "d", train=rows(pixels(4)), test=rows(pixels(3))))
        train, evaluation = data.for_model(settings(), seed=0)
        assert (data.image_size, data.augment) == (16, "cifar")
        assert isinstance(train, SingleImages)
        assert isinstance(evaluation, TensorImages)
        assert torch.equal(all_of(train)["labels"], torch.tensor([0, 1, 2, 0]))

    def test_small_ones_that_are_not_square(self, tmp_path):
        split = rows(pixels(4, 16, 20))
        data = load(folder_of(tmp_path / "d", train=split, test=split))
        assert (data.image_size, data.augment) == (None, "cifar")
        for dataset in data.for_model(settings(24), seed=0):
            assert all_of(dataset)["pixel_values"].shape == (4, 3, 24, 24)
        assert torch.allclose(all_of(dataset)["pixel_values"][1], as_model_takes(pixels(4, 16, 20)[1], 24), atol=0.02)


def naive_draw(seed, epoch, index, number, below):
    """The same numbers from Python's integers, one at a time."""

    def mix(x):
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    return (mix(mix(mix(mix(seed) ^ epoch) ^ index) ^ number) >> 32) * below >> 32


class TestAugmentation:
    def test_a_batch_equals_its_images_one_by_one(self):
        images = torch.from_numpy(pixels(50, 16, 12)).permute(0, 3, 1, 2)
        batch = crop_and_flip(images, image_keys(5, 3, range(50)), padding=2)
        for i, image in enumerate(images):
            top, left, mirror = (naive_draw(5, 3, i, number, below) for number, below in enumerate((5, 5, 2)))
            framed = np.zeros((3, 20, 16), dtype=np.uint8)
            framed[:, 2:18, 2:14] = image
            crop = framed[:, top : top + 16, left : left + 12]
            assert np.array_equal(batch[i], crop[:, :, ::-1] if mirror else crop)

    def test_draws_are_even_and_unrelated(self):
        keys = image_keys(0, 0, range(20_000))
        top, left = draw(keys, 0, 9), draw(keys, 1, 9)
        pairs = (top * 9 + left).bincount(minlength=81).double()
        expected = 20_000 / 81
        assert ((pairs - expected) ** 2 / expected).sum() < 135  # chi-squared of 80 degrees, p = 0.0001
        assert draw(keys, 2, 2).double().mean().sub(0.5).abs() < 0.02
        for other in (image_keys(1, 0, range(20_000)), image_keys(0, 1, range(20_000))):
            assert draw(other, 0, 9).eq(top).double().mean().sub(1 / 9).abs() < 0.01
            assert not np.intersect1d(keys, other).size

    @pytest.mark.parametrize("augment", ["cifar", "imagenet"])
    @pytest.mark.parametrize("side", [16, 70])
    def test_it_follows_from_seed_epoch_and_index(self, tmp_path, augment, side):
        split = rows(pixels(12, side, side))
        data = load(folder_of(tmp_path / "d", train=split, test=split), augment=augment)
        train, evaluation = data.for_model(settings(24), seed=7)
        before = torch.get_rng_state()
        first = all_of(train)["pixel_values"]
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(5)
        order = torch.randperm(12).tolist()
        assert torch.equal(train.__getitems__(order)["pixel_values"], first[order])
        assert torch.equal(train[5]["pixel_values"], first[5])
        assert not torch.equal(all_of(data.for_model(settings(24), seed=8)[0])["pixel_values"], first)
        plain = all_of(evaluation)["pixel_values"]
        train.set_epoch(1)
        evaluation.set_epoch(1)
        second = all_of(train)["pixel_values"]
        assert (first != second).flatten(1).any(1).sum() >= 10
        assert torch.equal(all_of(evaluation)["pixel_values"], plain)
        train.set_epoch(0)
        assert torch.equal(all_of(train)["pixel_values"], first)

    @pytest.mark.parametrize("side", [16, 70])
    def test_workers_see_the_epoch(self, tmp_path, side):
        split = rows(pixels(12, side, side))
        data = load(folder_of(tmp_path / "d", train=split, test=split))
        train, _ = data.for_model(settings(), seed=7)
        loader = DataLoader(train, 5, num_workers=2, persistent_workers=True, collate_fn=data.collate)
        for epoch in (0, 1, 5):
            train.set_epoch(epoch)
            batches = list(loader)
            assert [len(batch["labels"]) for batch in batches] == [5, 5, 2]
            assert torch.equal(torch.cat([b["pixel_values"] for b in batches]), all_of(train)["pixel_values"])

    def test_none(self, tmp_path):
        data = load(folder_of(tmp_path / "d", train=rows(pixels(6)), test=rows(pixels(6))), augment="none")
        train, evaluation = data.for_model(settings(), seed=7)
        assert torch.equal(all_of(train)["pixel_values"], all_of(evaluation)["pixel_values"])

    def test_random_crops_are_torchvisions(self, tmp_path):
        """Seeded with the image's key, torchvision's own steps give the same pixels."""
        images = pixels(3, 70, 90)
        data = load(folder_of(tmp_path / "d", train=rows(images), test=rows(images)))
        train, _ = data.for_model(settings(32, "bicubic"), seed=7)
        train.set_epoch(2)
        batch = all_of(train)["pixel_values"]
        for i, image in enumerate(images):
            torch.manual_seed(int(image_keys(7, 2, [i])[0]))
            image = v2.RandomResizedCrop(32, interpolation=v2.InterpolationMode.BICUBIC)(PILImage.fromarray(image))
            image = v2.RandomHorizontalFlip()(image)
            assert torch.allclose(batch[i], as_model_takes(np.asarray(image)), atol=1e-6)


class TestWhatTheModelSees:
    def test_small_images_are_normalised_as_torchvision_does(self, tmp_path):
        data = load(folder_of(tmp_path / "d", train=rows(pixels(6)), test=rows(pixels(6))))
        batch = all_of(data.for_model(settings(), seed=0)[1])
        assert batch["pixel_values"].dtype == torch.float32
        assert type(batch["pixel_values"]) is torch.Tensor
        for i, image in enumerate(pixels(6)):
            assert torch.allclose(batch["pixel_values"][i], as_model_takes(image), atol=1e-6)

    @pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
    def test_small_images_are_resized_whole(self, tmp_path, interpolation):
        data = load(folder_of(tmp_path / "d", train=rows(pixels(6)), test=rows(pixels(6))))
        train, evaluation = data.for_model(settings(32, interpolation), seed=0)
        assert all_of(train)["pixel_values"].shape == (6, 3, 32, 32)
        mode = {"nearest": v2.InterpolationMode.NEAREST_EXACT}.get(interpolation, interpolation)
        for i, image in enumerate(pixels(6)):
            resized = v2.Resize(32, interpolation=v2.InterpolationMode(mode))(PILImage.fromarray(image))
            # PIL and torch round differently: up to one of 255 levels.
            assert torch.allclose(
                evaluation[i]["pixel_values"], as_model_takes(np.asarray(resized)), atol=1.01 / 255 / min(STD)
            )

    def test_of_large_images_the_centre(self, tmp_path):
        images = pixels(3, 70, 90)
        data = load(folder_of(tmp_path / "d", train=rows(images), test=rows(images)))
        _, evaluation = data.for_model(settings(56), seed=0)
        for i, image in enumerate(images):  # 56 / 0.875 = 64: the shorter side of 70 becomes 64
            resized = PILImage.fromarray(image).resize((int(90 * 64 / 70), 64), PILImage.Resampling.BILINEAR)
            left = round((resized.width - 56) / 2)
            centre = resized.crop((left, 4, left + 56, 60))
            assert torch.allclose(evaluation[i]["pixel_values"], as_model_takes(np.asarray(centre)), atol=1e-6)

    def test_unknown_interpolation(self):
        with pytest.raises(PruningError, match="interpolation 'lanczos' is unknown: use nearest, bilinear, bicubic"):
            load("digits").for_model(settings(8, "lanczos"), seed=0)


def shade(i):
    """An image that is known by its colour, also after any crop."""
    return np.full((16, 16, 3), 1 + i, dtype=np.uint8)


def shades_of(dataset, n=None, workers=0):
    batches = DataLoader(dataset, 4, num_workers=workers, collate_fn=lambda examples: examples)
    examples = itertools.islice((example for batch in batches for example in batch), n)
    return [round(float(e["pixel_values"][0, 0, 0] * STD[0] + MEAN[0]) * 255) - 1 for e in examples]


class TestStreaming:
    @pytest.fixture
    def path(self, tmp_path):
        parts = [rows([shade(i) for i in range(start, start + 10)]) for start in (0, 10)]
        return folder_of(tmp_path / "d", train=parts, test=rows([shade(i) for i in range(100, 111)]))

    def test_every_image_once_in_another_order_each_epoch(self, path):
        data = load(path, streaming=True, augment="none")
        assert (data.labels, data.image_size) == (NAMES, 16)
        train, evaluation = data.for_model(settings(), seed=3)
        assert isinstance(train, StreamedImages)
        order = shades_of(train, 60)
        passes = [order[:20], order[20:40], order[40:]]
        assert [sorted(p) for p in passes] == [list(range(20))] * 3
        assert passes[0] != passes[1] != passes[2] != passes[0]
        assert passes[0] != list(range(20))
        assert shades_of(train, 60) == order
        train.set_epoch(1)
        assert shades_of(train, 20) == passes[1]
        assert shades_of(evaluation) == list(range(100, 111))
        shared = shades_of(train, 80, workers=2)
        assert all(shared.count(i) == 4 for i in range(20))
        train, _ = load(path, streaming=True, augment="none", train_split="test", eval_split="train").for_model(
            settings(), seed=3
        )
        one_file = shades_of(train, 22, workers=2)  # one worker has nothing to read
        assert all(one_file.count(i) == 2 for i in range(100, 111))

    def test_fewer_images(self, path):
        data = load(path, streaming=True, augment="none", max_train_samples=8, max_eval_samples=7)
        train, evaluation = data.for_model(settings(), seed=3)
        assert sorted(shades_of(train, 8)) == list(range(8))
        assert set(shades_of(train, 40)) == set(range(8))
        assert shades_of(evaluation) == list(range(100, 107))
        assert shades_of(evaluation, workers=2) == list(range(100, 107))  # more workers than files

    def test_augmentation_follows_the_image_and_not_its_place(self, tmp_path):
        parts = [rows(pixels(6, 70, 70, seed)) for seed in (0, 1)]
        data = load(folder_of(tmp_path / "d", train=parts, test=parts[0]), streaming=True)
        assert (data.augment, data.image_size) == ("imagenet", None)
        train, _ = data.for_model(settings(24), seed=3)

        def seen(epoch, workers):
            train.set_epoch(epoch)
            loader = DataLoader(train, 3 if workers else 4, num_workers=workers, collate_fn=data.collate)
            batches = itertools.islice(loader, 4 if workers else 3)
            return [image.numpy().tobytes() for batch in batches for image in batch["pixel_values"]]

        alone, shared = seen(0, workers=0), seen(0, workers=2)
        assert alone != shared
        assert set(alone) == set(shared)
        assert not set(alone) & set(seen(1, workers=0))

    @pytest.mark.parametrize(
        ("column", "value", "message"),
        [
            ("picture", {"bytes": b"no image", "path": None}, "image 4 read from the stream of split 'test' cannot be"),
            ("kind", None, r"label of image 4 read from the stream of split 'test' is missing \(None\)"),
            ("kind", -1, "label of image 4 read from the stream of split 'test' is -1, which is none of the 3 classes"),
            ("kind", 3, "label of image 4 read from the stream of split 'test' is 3, which is none of the 3 classes"),
        ],
    )
    def test_bad_rows(self, tmp_path, column, value, message):
        good = rows(pixels(6))
        path = folder_of(tmp_path / "d", train=good, test=tampered(good, column, 4, value))
        _, evaluation = load(path, streaming=True).for_model(settings(), seed=0)
        with pytest.raises(PruningError, match=message):
            list(evaluation)

    def test_what_a_stream_cannot_tell(self, tmp_path):
        only_train = folder_of(tmp_path / "a", train=rows(pixels(6)))
        with pytest.raises(PruningError, match="no validation or test split, and none can be made of a stream"):
            load(only_train, streaming=True)
        numbers = rows(pixels(6), [1, 2] * 3, Value("int64"))
        with pytest.raises(PruningError, match=r"labels of split 'train' are int64 without class names.*streaming off"):
            load(folder_of(tmp_path / "b", train=numbers, test=numbers), streaming=True)
        with pytest.raises(PruningError, match="split 'test' is empty"):
            load(folder_of(tmp_path / "c", train=rows(pixels(6)), test=rows([])), streaming=True)


class Looker(torch.nn.Module):
    """A model that remembers what it was shown in training."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = torch.nn.Linear(3 * 16 * 16, 3)
        self.shown = []

    def forward(self, pixel_values, labels=None):
        if self.training:
            self.shown.append(pixel_values)
        logits = self.head(pixel_values.flatten(1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class TestInTheTrainer:
    @pytest.mark.parametrize("streaming", [False, True])
    def test_resuming_inside_an_epoch_changes_nothing(self, tmp_path, streaming):
        path = folder_of(tmp_path / "d", train=rows(pixels(20)), test=rows(pixels(6)))
        data = load(path, streaming=streaming)
        whole = self.run(data, tmp_path / "run")
        resumed = self.run(data, tmp_path / "run", resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-7"))
        assert len(whole) == 15
        assert len(resumed) == 8
        assert all(torch.equal(a, b) for a, b in zip(whole[7:], resumed, strict=True))

    def run(self, data, folder, **train):
        arguments = TrainingArguments(
            output_dir=str(folder),
            max_steps=15,
            per_device_train_batch_size=4,
            save_steps=7,
            report_to="none",
            remove_unused_columns=False,
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        train_set, eval_set = data.for_model(settings(), seed=1)
        trainer = Trainer(
            Looker(),
            arguments,
            train_dataset=train_set,
            eval_dataset=eval_set,
            data_collator=data.collate,
            callbacks=[SetEpochCallback(train_set)],
        )
        trainer.train(**train)
        assert len(trainer.predict(eval_set).predictions) == 6
        return trainer.model.shown


class TestRefusals:
    def refuse(self, message, path, **arguments):
        with pytest.raises(PruningError, match=message) as caught:
            load(path, **arguments)
        assert "\n" not in str(caught.value)

    def test_unknown_columns(self, tmp_path):
        path = folder_of(tmp_path / "d", train=rows(pixels(6)))
        self.refuse("'img' is not a column: the data has remark, picture, kind", path, image_column_name="img")
        self.refuse("'y' is not a column: the data has remark, picture, kind", path, label_column_name="y")
        self.refuse("column 'remark' holds float32, not images", path, image_column_name="remark")
        split = rows(pixels(6)).remove_columns("picture")
        self.refuse("none of the columns remark, kind holds images", folder_of(tmp_path / "e", train=split))
        split = rows(pixels(6)).remove_columns("kind")
        self.refuse("none of the columns remark, picture holds classes", folder_of(tmp_path / "f", train=split))

    def test_labels_that_are_no_classes(self, tmp_path):
        path = folder_of(tmp_path / "d", train=rows(pixels(6)))
        self.refuse("column 'remark' holds float32, not one class for", path, label_column_name="remark")
        split = rows(pixels(4), [[0], [1, 2], [], [0]], List(ClassLabel(names=NAMES)))
        path = folder_of(tmp_path / "e", train=split)
        self.refuse("column 'kind' holds List, not one class for", path, label_column_name="kind")

    @pytest.mark.parametrize("value", [-1, 3, 99])
    def test_labels_outside_the_classes(self, tmp_path, value):
        good, bad = rows(pixels(6)), tampered(rows(pixels(6)), "kind", 4, value)
        message = f"label of image 4 of split '{{}}' is {value}, which is none of the 3 classes ant, bee, cow"
        self.refuse(message.format("train"), folder_of(tmp_path / "d", train=bad))
        self.refuse(message.format("test"), folder_of(tmp_path / "e", train=good, test=bad))

    def test_labels_that_training_does_not_have(self, tmp_path):
        train = rows(pixels(4), ["fox", "elk"] * 2, Value("string"))
        test = rows(pixels(2), ["fox", "gnu"], Value("string"))
        self.refuse("label of image 1 of split 'test' is gnu, which", folder_of(tmp_path / "d", train=train, test=test))

    def test_missing_labels(self, tmp_path):
        for name, split in {
            "d": rows(pixels(3), [0, 1, None]),
            "e": rows(pixels(3), ["a", "b", None], Value("string")),
        }.items():
            self.refuse(
                r"label of image 2 of split 'train' is missing \(None\)", folder_of(tmp_path / name, train=split)
            )

    def test_one_class(self, tmp_path):
        split = rows(pixels(3), [0, 0, 0], ClassLabel(names=["ant"]))
        self.refuse("split 'train' has the only class", folder_of(tmp_path / "d", train=split))
        split = rows(pixels(3), [1, 1, 1])
        self.refuse("all images of split 'train' are of the class 'bee'", folder_of(tmp_path / "e", train=split))

    @pytest.mark.parametrize("side", [16, 70])
    def test_corrupt_images(self, tmp_path, side):
        good = rows(pixels(6, side, side))
        for name, broken in {"text": b"no image", "half": png(pixels(1, side, side)[0])[:200], "none": None}.items():
            bad = tampered(good, "picture", 3, {"bytes": broken, "path": "bear.png" if broken else None})
            path = folder_of(tmp_path / name, train=good, test=bad)
            shown = r" \(bear.png\)" if broken else ""
            message = f"image 3 of split 'test'{shown} cannot be read .*: repair or remove it"
            if side == 16:
                self.refuse(message, path)
                continue
            data = load(path)
            _, evaluation = data.for_model(settings(), seed=0)
            with pytest.raises(PruningError, match=message):
                all_of(evaluation)
            with pytest.raises(PruningError, match=message) as caught:
                list(DataLoader(evaluation, 2, num_workers=1, collate_fn=data.collate))
            traceback.clear_frames(caught.tb)  # ends the worker now

    def test_depths_that_have_no_scale(self, tmp_path):
        file = io.BytesIO()
        PILImage.fromarray(np.ones((8, 8), dtype=np.float32)).save(file, "tiff")
        split = tampered(rows(pixels(2)), "picture", 0, {"bytes": file.getvalue(), "path": None})
        self.refuse(
            "image 0 of split 'train' cannot be read .*mode F", folder_of(tmp_path / "d", train=split, test=split)
        )

    def test_the_row_is_named_also_where_not_all_are_used(self, tmp_path):
        split = tampered(rows(pixels(30)), "picture", 17, {"bytes": b"no image", "path": None})
        self.refuse(
            "image 17 of split 'train' cannot be read", folder_of(tmp_path / "d", train=split), eval_fraction=0.5
        )

    def test_splits(self, tmp_path):
        path = folder_of(tmp_path / "d", train=rows(pixels(6)), test=rows([]))
        self.refuse("train_split 'training' is not a split: the data has train, test", path, train_split="training")
        self.refuse("eval_split 'dev' is not a split: the data has train, test", path, eval_split="dev")
        self.refuse("split 'test' is empty", path)
        self.refuse("split 'test' is empty", path, train_split="test", eval_split="train")
        one = folder_of(tmp_path / "e", train=rows(pixels(2)))
        self.refuse("split 'train' has 2 images, too few to evaluate on 99%", one, eval_fraction=0.99)

    def test_data_that_is_not_there(self, tmp_path):
        self.refuse("'uoft-cs/nothing' is not a folder, and the Hub cannot be reached", "uoft-cs/nothing")
        self.refuse("'/no/such/folder' cannot be loaded", "/no/such/folder")
        self.refuse("'not a name!' is not a folder", "not a name!")
        (tmp_path / "empty").mkdir()
        self.refuse("empty' cannot be loaded .*: give a Hub id, or a folder", tmp_path / "empty")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "notes.bin").write_bytes(b"notes")
        self.refuse("other' cannot be loaded .*: give a Hub id, or a folder", tmp_path / "other")
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "train.parquet").write_bytes(b"no parquet")
        self.refuse("broken' cannot be loaded .*: give a Hub id, or a folder", tmp_path / "broken")
        path = folder_of(tmp_path / "d", train=rows(pixels(6)))
        self.refuse("cannot be loaded .*'fancy'", path, dataset_config_name="fancy")
        with pytest.raises(PruningError, match="dataset_name is missing"):
            load_image_data(DataArguments())

    def test_arguments(self):
        for name in ("max_train_samples", "max_eval_samples"):
            with pytest.raises(PruningError, match=f"{name} is 0, and must be at least 1"):
                DataArguments(**{name: 0})
        with pytest.raises(PruningError, match=r"eval_fraction is 1.5: give a number between 0 and 1"):
            DataArguments(eval_fraction=1.5)
        with pytest.raises(PruningError, match="augment is 'mixup': use auto, cifar, imagenet or none"):
            DataArguments(augment="mixup")
        with pytest.raises(PruningError, match="streaming has no meaning for the digits"):
            load("digits", streaming=True)
        (parsed,) = HfArgumentParser(DataArguments).parse_args_into_dataclasses(
            ["--dataset_name", "digits", "--augment", "cifar", "--max_train_samples", "7", "--streaming"]
        )
        assert parsed == DataArguments("digits", augment="cifar", max_train_samples=7, streaming=True)

    @pytest.mark.parametrize(
        ("name", "module", "package"), [("x/y", "datasets", "datasets"), ("digits", "sklearn.datasets", "scikit-learn")]
    )
    def test_packages_that_are_not_installed(self, monkeypatch, name, module, package):
        monkeypatch.setitem(__import__("sys").modules, module, None)
        self.refuse(rf'{package} is not installed: pip install "hf_cyclical\[run\]"', name)
