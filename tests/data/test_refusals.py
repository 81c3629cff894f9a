"""What is wrong with data is said in one line."""

import io
import traceback

import numpy as np
import pytest
from datasets import ClassLabel, List, Value
from PIL import Image as PILImage
from support.made_data import NAMES, a_model, all_of, folder_of, load, pixels, png, rows, tampered
from torch.utils.data import DataLoader
from transformers import HfArgumentParser

from hf_cyclical.core import PruningError
from hf_cyclical.data import DataArguments, load_image_data


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
            self.refuse(
                f"1 of 12 images cannot be used, the first is image 3 of split 'test'{shown}", path, check_images="full"
            )
            message = f"image 3 of split 'test'{shown} cannot be read .*: repair or remove it"
            if side == 16:
                self.refuse(message, path, check_images="none")
                continue
            data = load(path, check_images="none")
            _, evaluation = data.for_model(a_model(), seed=0)
            with pytest.raises(PruningError, match=message):
                all_of(evaluation)
            with pytest.raises(PruningError, match=message) as caught:
                list(DataLoader(evaluation, 2, num_workers=1, collate_fn=data.collate))
            traceback.clear_frames(caught.tb)  # ends the worker now

    def test_depths_that_have_no_scale(self, tmp_path):
        file = io.BytesIO()
        PILImage.fromarray(np.ones((8, 8), dtype=np.float32)).save(file, "tiff")
        split = tampered(rows(pixels(2)), "picture", 0, {"bytes": file.getvalue(), "path": None})
        self.refuse("image 0 of split 'train' .*mode F", folder_of(tmp_path / "d", train=split, test=split))

    def test_the_row_is_named_also_where_not_all_are_used(self, tmp_path):
        split = tampered(rows(pixels(30)), "picture", 17, {"bytes": b"no image", "path": None})
        self.refuse("the first is image 17 of split 'train'", folder_of(tmp_path / "d", train=split), eval_fraction=0.5)

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
        self.refuse("'/no/such/folder' is neither a folder here nor on the Hub", "/no/such/folder")
        self.refuse("'not a name!' is neither a folder here nor on the Hub", "not a name!")
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
        self.refuse("eval_fraction is 0.001, and leaves classes of the digits without", "digits", eval_fraction=0.001)
        with pytest.raises(PruningError, match="augment is 'mixup': use auto, cifar, shift, imagenet or none"):
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
