"""Data that is read while training, and data in the Trainer."""

import itertools

import numpy as np
import pytest
import torch
from datasets import Value
from support.made_data import MEAN, NAMES, STD, a_model, folder_of, load, pixels, rows, tampered
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from hf_cyclical.core import PruningError
from hf_cyclical.data import StreamedImages
from hf_cyclical.training import SetEpochCallback


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
        train, evaluation = data.for_model(a_model(), seed=3)
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
            a_model(), seed=3
        )
        one_file = shades_of(train, 22, workers=2)  # one worker has nothing to read
        assert all(one_file.count(i) == 2 for i in range(100, 111))

    def test_fewer_images(self, path):
        data = load(path, streaming=True, augment="none", max_train_samples=8, max_eval_samples=7)
        train, evaluation = data.for_model(a_model(), seed=3)
        assert sorted(shades_of(train, 8)) == list(range(8))
        assert set(shades_of(train, 40)) == set(range(8))
        assert shades_of(evaluation) == list(range(100, 107))
        assert shades_of(evaluation, workers=2) == list(range(100, 107))  # more workers than files

    def test_augmentation_follows_the_image_and_not_its_place(self, tmp_path):
        parts = [rows(pixels(6, 70, 70, seed)) for seed in (0, 1)]
        data = load(folder_of(tmp_path / "d", train=parts, test=parts[0]), streaming=True)
        assert (data.augment, data.image_size) == ("imagenet", None)
        train, _ = data.for_model(a_model(24), seed=3)

        def seen(epoch, workers):
            train.set_epoch(epoch)
            loader = DataLoader(train, 3 if workers else 4, num_workers=workers, collate_fn=data.collate)
            batches = itertools.islice(loader, 4 if workers else 3)
            return [image.numpy().tobytes() for batch in batches for image in batch["pixel_values"]]

        alone, shared = seen(0, workers=0), seen(0, workers=2)
        assert alone != shared
        assert set(alone) == set(shared)
        assert not set(alone) & set(seen(1, workers=0))

    def test_augmentation_differs_between_images(self, path):
        train, _ = load(path, streaming=True, augment="cifar").for_model(a_model(), seed=3)
        examples = itertools.islice(train, 20)
        frames = {(e["pixel_values"][0] == -MEAN[0] / STD[0]).numpy().tobytes() for e in examples}
        assert len(frames) > 8  # of the 25 places that a crop can have

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
        _, evaluation = load(path, streaming=True).for_model(a_model(), seed=0)
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
        train_set, eval_set = data.for_model(a_model(), seed=1)
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
