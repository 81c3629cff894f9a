"""Randomness that follows from seed, epoch and image, and what the model sees in the end."""

import numpy as np
import pytest
import torch
from PIL import Image as PILImage
from support.made_data import STD, a_model, all_of, as_model_takes, folder_of, load, pixels, rows
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from hf_cyclical.core import PruningError
from hf_cyclical.data.keyed_random import draw, image_keys
from hf_cyclical.data.transforms import crop_and_flip, shift


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

    def test_a_shift_is_the_crop_without_the_mirror(self):
        images = torch.from_numpy(pixels(50, 16, 12)).permute(0, 3, 1, 2)
        keys = image_keys(5, 3, range(50))
        batch, cropped = shift(images, keys, 2), crop_and_flip(images, keys, 2)
        mirrored = [naive_draw(5, 3, i, 2, 2) for i in range(50)]
        assert 10 < sum(mirrored) < 40
        for one, other, mirror in zip(batch, cropped, mirrored, strict=True):
            assert torch.equal(one, other.flip(-1) if mirror else other)

    def test_digits_move_by_up_to_a_pixel_and_are_not_mirrored(self):
        data = load("digits", augment="shift")
        train, evaluation = data.for_model(a_model(8), seed=7)
        plain = all_of(data.for_model(a_model(8), seed=7)[1])["pixel_values"]
        assert torch.equal(all_of(evaluation)["pixel_values"], plain)  # those to evaluate on stay where they are
        still = all_of(load("digits").for_model(a_model(8), seed=7)[0])["pixel_values"][:200]
        moved = train.__getitems__(range(200))["pixel_values"]
        black = as_model_takes(np.zeros((1, 1, 3), dtype=np.uint8))
        seen = set()
        for before, after in zip(still, moved, strict=True):
            framed = black.expand(3, 10, 10).clone()
            framed[:, 1:9, 1:9] = before
            places = [(i, j) for i in range(3) for j in range(3) if torch.equal(framed[:, i : i + 8, j : j + 8], after)]
            assert places
            seen.add(places[0])
        assert len(seen) == 9

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

    @pytest.mark.parametrize("augment", ["cifar", "imagenet", "shift"])
    @pytest.mark.parametrize("side", [16, 70])
    def test_it_follows_from_seed_epoch_and_index(self, tmp_path, augment, side):
        split = rows(pixels(12, side, side))
        data = load(folder_of(tmp_path / "d", train=split, test=split), augment=augment)
        train, evaluation = data.for_model(a_model(24), seed=7)
        before = torch.get_rng_state()
        first = all_of(train)["pixel_values"]
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(5)
        order = torch.randperm(12).tolist()
        assert torch.equal(train.__getitems__(order)["pixel_values"], first[order])
        assert torch.equal(train[5]["pixel_values"], first[5])
        assert not torch.equal(all_of(data.for_model(a_model(24), seed=8)[0])["pixel_values"], first)
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
        train, _ = data.for_model(a_model(), seed=7)
        loader = DataLoader(train, 5, num_workers=2, persistent_workers=True, collate_fn=data.collate)
        for epoch in (0, 1, 5):
            train.set_epoch(epoch)
            batches = list(loader)
            assert [len(batch["labels"]) for batch in batches] == [5, 5, 2]
            assert torch.equal(torch.cat([b["pixel_values"] for b in batches]), all_of(train)["pixel_values"])

    def test_none(self, tmp_path):
        data = load(folder_of(tmp_path / "d", train=rows(pixels(6)), test=rows(pixels(6))), augment="none")
        train, evaluation = data.for_model(a_model(), seed=7)
        assert torch.equal(all_of(train)["pixel_values"], all_of(evaluation)["pixel_values"])

    def test_random_crops_are_torchvisions(self, tmp_path):
        """Seeded with the image's key, torchvision's own steps give the same pixels."""
        images = pixels(3, 70, 90)
        data = load(folder_of(tmp_path / "d", train=rows(images), test=rows(images)))
        train, _ = data.for_model(a_model(32, "bicubic"), seed=7)
        train.set_epoch(2)
        batch = all_of(train)["pixel_values"]
        for i, image in enumerate(images):
            torch.manual_seed(int(image_keys(7, 2, [i])[0]))
            image = v2.RandomResizedCrop(32, interpolation=v2.InterpolationMode.BICUBIC)(PILImage.fromarray(image))
            image = v2.RandomHorizontalFlip()(image)
            assert torch.allclose(batch[i], as_model_takes(np.asarray(image)), atol=1e-6)

    def test_shifts_of_large_images_are_torchvisions(self, tmp_path):
        images = pixels(6, 70, 90)
        data = load(folder_of(tmp_path / "d", train=rows(images), test=rows(images)), augment="shift")
        train, _ = data.for_model(a_model(32), seed=7)
        batch = all_of(train)["pixel_values"]
        for i, image in enumerate(images):
            torch.manual_seed(int(image_keys(7, 0, [i])[0]))
            image = v2.CenterCrop(32)(v2.Resize(32)(PILImage.fromarray(image)))
            assert torch.allclose(batch[i], as_model_takes(np.asarray(v2.RandomCrop(32, padding=4)(image))), atol=1e-6)


class TestWhatTheModelSees:
    def test_small_images_are_normalised_as_torchvision_does(self, tmp_path):
        data = load(folder_of(tmp_path / "d", train=rows(pixels(6)), test=rows(pixels(6))))
        batch = all_of(data.for_model(a_model(), seed=0)[1])
        assert batch["pixel_values"].dtype == torch.float32
        assert type(batch["pixel_values"]) is torch.Tensor
        for i, image in enumerate(pixels(6)):
            assert torch.allclose(batch["pixel_values"][i], as_model_takes(image), atol=1e-6)

    @pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
    def test_small_images_are_resized_whole(self, tmp_path, interpolation):
        data = load(folder_of(tmp_path / "d", train=rows(pixels(6)), test=rows(pixels(6))))
        train, evaluation = data.for_model(a_model(32, interpolation), seed=0)
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
        _, evaluation = data.for_model(a_model(56, crop_pct=0.875), seed=0)
        for i, image in enumerate(images):  # 56 / 0.875 = 64: the shorter side of 70 becomes 64
            resized = PILImage.fromarray(image).resize((int(90 * 64 / 70), 64), PILImage.Resampling.BILINEAR)
            left = round((resized.width - 56) / 2)
            centre = resized.crop((left, 4, left + 56, 60))
            assert torch.allclose(evaluation[i]["pixel_values"], as_model_takes(np.asarray(centre)), atol=1e-6)

    def test_unknown_interpolation(self):
        with pytest.raises(PruningError, match="interpolation 'lanczos' is unknown: use nearest, bilinear, bicubic"):
            load("digits").for_model(a_model(8, "lanczos"), seed=0)
