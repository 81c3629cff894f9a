"""What is found in a data set, and how its images are kept."""

import io
import logging

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as PILImage
from support.made_data import NAMES, a_model, all_of, as_model_takes, folder_of, load, pixels, png, rows, tampered
from torchvision.transforms import v2

from hf_cyclical.core import PruningError
from hf_cyclical.data import SingleImages, TensorImages, loading, ready_batch


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
        train, _ = data.for_model(a_model(8), seed=0)
        assert torch.equal(train[3]["pixel_values"], train.__getitems__([7, 3])["pixel_values"][1])
        assert load("digits", augment="cifar", max_train_samples=5).train.images.shape[0] == 5

    def test_another_part_of_the_digits_to_evaluate_on(self):
        data = load("digits", eval_fraction=0.2)
        assert (len(data.train.labels), len(data.eval.labels)) == (1437, 360)
        assert (data.eval.labels.bincount() - 36).abs().max() <= 1  # the same part of each class

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
        assert torch.equal(load(path, eval_fraction=0.3, seed=1).eval.images, data.eval.images)

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
        train, evaluation = data.for_model(a_model(32), seed=0)
        assert (data.image_size, data.augment) == (None, "imagenet")
        assert isinstance(train, SingleImages)
        assert isinstance(evaluation, SingleImages)
        assert all_of(train)["pixel_values"].shape == (4, 3, 32, 32)

    def test_those_of_several_sizes_too(self, tmp_path):
        mixed = rows([*pixels(3), *pixels(3, 20, 18)])
        data = load(folder_of(tmp_path / "d", train=mixed, test=rows(pixels(4))))
        train, evaluation = data.for_model(a_model(), seed=0)
        assert (data.image_size, data.augment) == (None, "imagenet")
        assert isinstance(train, SingleImages)
        assert isinstance(evaluation, TensorImages)
        assert all_of(train)["pixel_values"].shape == (6, 3, 16, 16)
        assert all_of(evaluation)["pixel_values"].shape == (4, 3, 16, 16)

    def test_those_that_would_fill_the_memory_too(self, tmp_path, monkeypatch):
        monkeypatch.setattr(loading, "MOST_BYTES", 4 * 16 * 16 * 3 - 1)
        data = load(folder_of(tmp_path / "d", train=rows(pixels(4)), test=rows(pixels(3))))
        train, evaluation = data.for_model(a_model(), seed=0)
        assert (data.image_size, data.augment) == (16, "cifar")
        assert isinstance(train, SingleImages)
        assert isinstance(evaluation, TensorImages)
        assert torch.equal(all_of(train)["labels"], torch.tensor([0, 1, 2, 0]))

    def test_small_ones_that_are_not_square(self, tmp_path):
        split = rows(pixels(4, 16, 20))
        data = load(folder_of(tmp_path / "d", train=split, test=split))
        assert (data.image_size, data.augment) == (None, "cifar")
        for dataset in data.for_model(a_model(24), seed=0):
            assert all_of(dataset)["pixel_values"].shape == (4, 3, 24, 24)
        assert torch.allclose(all_of(dataset)["pixel_values"][1], as_model_takes(pixels(4, 16, 20)[1], 24), atol=0.02)
