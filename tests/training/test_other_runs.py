"""A checkpoint is resumed only by the run it is of: every setting, and the data, have to be the same."""

import dataclasses
import json
import shutil

import datasets
import pytest
import torch
from support.tiny import CYCLICAL, TinyImages, TinyNet, build_trainer
from torch.utils.data import Subset
from transformers import PreTrainedConfig

from hf_cyclical import PruningConfig, PruningError
from hf_cyclical.training.checkpoints import seal

RUN = {"max_steps": 12, "save_strategy": "steps", "save_steps": 8}
PRUNING = {
    "method": "gradual",
    "target_sparsity": 0.5,
    "cycles": 3,
    "init_sparsity": 0.1,
    "schedule": "linear",
    "delta_t": 2,
    "ramp_fraction": 0.5,
    "lr_shape": "constant",
    "lr_drop_at": 0.5,
    "lr_drop_factor": 0.2,
    "share": "global",
    "layer_sparsity": ["head=0.5"],
    "row_floor": 0,
    "pattern": "4x1",
    "include": ["hidden"],
    "exclude": ["head"],
    "dense_epochs": 0.5,
    "dense_updates": 2,
    "mask_momentum": False,
    "ema_decay": 0.9,
    "distill": 0.5,
    "recalibrate": 2,
    "allr": 0.5,
    "lr_warmup": 0.1,
    "tail": 0.2,
}
RIGL = {"drop_fraction": 0.2, "init_masks": "random", "replace_step": False}  # which cyclical pruning does not have
TRAINING = {
    "learning_rate": 0.001,
    "optim": "adamw_torch",
    "optim_args": "momentum=0.5",
    "weight_decay": 0.1,
    "max_grad_norm": 1.0,
    "label_smoothing_factor": 0.1,
    "seed": 3,
    "data_seed": 3,
    "images an update": 16,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    trainer = build_trainer(tmp_path_factory.mktemp("made"), CYCLICAL, **RUN)
    trainer.train()
    return trainer


def checkpoint_of(trainer):
    return f"{trainer.args.output_dir}/checkpoint-8"


def test_every_setting_has_its_test(made):
    others = RIGL.keys() | {"distill_temperature"}  # which has no meaning here, either
    assert made.settings().keys() == PRUNING.keys() | others | TRAINING.keys() | {"data", "num_train_epochs"}
    fields = {field.name for field in dataclasses.fields(PruningConfig)}
    assert fields == PRUNING.keys() | others | {"scope"}  # that is share


@pytest.mark.parametrize("name", PRUNING)
def test_another_way_of_pruning_is_refused(made, make_trainer, name):
    before = {key: value for key, value in CYCLICAL.items() if name != "method" or key != "cycles"}
    trainer = make_trainer(before | {name: PRUNING[name]}, **RUN)
    with pytest.raises(PruningError, match=f"of another run: {name} is .* there, .* here: resume with the settings"):
        trainer.train(resume_from_checkpoint=checkpoint_of(made))


@pytest.mark.parametrize("name", RIGL)
def test_another_way_of_rigl_is_refused(make_trainer, tmp_path, name):
    rigl = {"method": "rigl", "target_sparsity": 0.5, "delta_t": 3}
    make_trainer(rigl, **RUN).train()
    trainer = make_trainer(rigl | {name: RIGL[name]}, **RUN)
    with pytest.raises(PruningError, match=f"of another run: {name} is .* there, .* here: resume with the settings"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-8"))


@pytest.mark.parametrize("name", TRAINING)
def test_another_way_of_training_is_refused(made, make_trainer, name):
    argument = "per_device_train_batch_size" if name == "images an update" else name
    model = TinyNet()
    model.config = PreTrainedConfig()  # which the Trainer asks for with label_smoothing_factor
    trainer = make_trainer(CYCLICAL, model=model, **RUN | {argument: TRAINING[name]})
    words = f"of another run: {name} is .* there, '?{TRAINING[name]}'? here: resume with the settings"
    with pytest.raises(PruningError, match=words):
        trainer.train(resume_from_checkpoint=checkpoint_of(made))


class TestOtherData:
    """With the same number of updates."""

    def test_of_another_size(self, made, make_trainer):
        with pytest.raises(PruningError, match="other data: training images is 96 there, 104 here: resume with"):
            make_trainer(CYCLICAL, train_dataset=TinyImages(n=104), **RUN).train(checkpoint_of(made))
        with pytest.raises(PruningError, match="other data: evaluation images is 48 there, 40 here"):
            make_trainer(CYCLICAL, eval_dataset=TinyImages(n=40), **RUN).train(checkpoint_of(made))

    def test_of_the_same_size(self, made, make_trainer):
        with pytest.raises(PruningError, match=r"other data: checksum of the training labels is \d+ there, \d+ here"):
            make_trainer(CYCLICAL, train_dataset=TinyImages(seed=9), **RUN).train(checkpoint_of(made))

    def test_of_a_part_of_the_same_size(self, make_trainer, tmp_path):
        images = TinyImages(n=192)
        make_trainer(CYCLICAL, train_dataset=Subset(images, range(96)), **RUN).train()
        checkpoint = str(tmp_path / "run" / "checkpoint-8")
        with pytest.raises(PruningError, match="checksum of the training labels"):
            make_trainer(CYCLICAL, train_dataset=Subset(images, range(96, 192)), **RUN).train(checkpoint)
        make_trainer(CYCLICAL, train_dataset=Subset(images, range(96)), **RUN).train(checkpoint)

    @pytest.mark.parametrize("kind", [datasets.ClassLabel(names=["a", "b", "c"]), datasets.Value("int64")])
    def test_of_the_datasets_library(self, make_trainer, tmp_path, kind):
        def data(seed):
            images, features = TinyImages(seed=seed), {"labels": kind}
            features["pixel_values"] = datasets.Array3D((1, 4, 4), "float32")
            columns = {"labels": images.labels.tolist(), "pixel_values": images.pixels.numpy()}
            rows = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
            return rows.with_transform(
                lambda batch: {
                    "labels": batch["labels"], "pixel_values": [torch.tensor(p) for p in batch["pixel_values"]]
                }
            )  # fmt: skip

        make_trainer(CYCLICAL, train_dataset=data(1), remove_unused_columns=False, **RUN).train()
        checkpoint = str(tmp_path / "run" / "checkpoint-8")
        with pytest.raises(PruningError, match="checksum of the training labels"):
            make_trainer(CYCLICAL, train_dataset=data(2), **RUN).train(checkpoint)
        make_trainer(CYCLICAL, train_dataset=data(1), remove_unused_columns=False, **RUN).train(checkpoint)

    @pytest.mark.parametrize(
        ("names", "others", "words"),
        [
            (["a", "b", "c"], ["a", "b", "d"], r"label names is \['a', 'b', 'c'\] there, \['a', 'b', 'd'\] here"),
            (list("abcdefghijkl"), list("abcdefghijkm"), "number 11 of the label names is 'l' there, 'm' here"),
            (list("abcdefghijkl"), list("abcdefghijk"), "label names are 12 there, 11 here"),
        ],
    )
    def test_with_other_label_names(self, make_trainer, tmp_path, names, others, words):
        def model(names):
            net = TinyNet()
            net.config = PreTrainedConfig(id2label=dict(enumerate(names)))
            return net

        make_trainer(CYCLICAL, model=model(names), **RUN).train()
        with pytest.raises(PruningError, match=words):
            make_trainer(CYCLICAL, model=model(others), **RUN).train(str(tmp_path / "run" / "checkpoint-8"))

    def test_with_other_settings_of_its_images(self, make_trainer, tmp_path):
        trainer = make_trainer(CYCLICAL, **RUN)
        trainer.data_settings = {"image settings": {"size": 32, "mean": (0.5,)}}
        trainer.train()
        again = make_trainer(CYCLICAL, **RUN)
        again.data_settings = {"image settings": {"size": 64, "mean": (0.5,)}}
        with pytest.raises(PruningError, match=r"other data: image settings is {'size': 32.*} there, {'size': 64"):
            again.train(str(tmp_path / "run" / "checkpoint-8"))

    @pytest.mark.parametrize("labels", [5, [[1], [1, 2]], ["a"] * 96, "method"])
    def test_labels_of_another_kind_are_not_compared(self, make_trainer, labels):
        images = [TinyImages()[i] for i in range(96)]
        data = type("Data", (list,), {"labels": labels if labels != "method" else lambda self: 1})(images)
        trainer = make_trainer(CYCLICAL, train_dataset=data, **RUN)
        assert "checksum of the training labels" not in trainer.settings()["data"]

    def test_data_that_tell_no_labels_are_said_not_to_be_compared(self, make_trainer, tmp_path, caplog):
        images = [TinyImages()[i] for i in range(96)]
        make_trainer(CYCLICAL, train_dataset=images, **RUN).train()
        assert "not compared" not in caplog.text
        make_trainer(CYCLICAL, train_dataset=images, **RUN).train(str(tmp_path / "run" / "checkpoint-8"))
        assert "whether they are those of the checkpoint was not compared" in caplog.text


def test_a_checkpoint_from_before_the_data_was_compared_still_resumes(made, make_trainer, tmp_path):
    folder = shutil.copytree(checkpoint_of(made), tmp_path / "older" / "checkpoint-8")
    state = json.loads((folder / "pruning_state.json").read_text())
    del state["settings"]["data"]
    (folder / "pruning_state.json").write_text(json.dumps(state))
    (folder / "manifest.json").unlink()
    seal(folder)
    trainer = make_trainer(CYCLICAL, train_dataset=TinyImages(seed=9), **RUN)
    trainer.train(resume_from_checkpoint=str(folder))
    assert trainer.state.global_step == 12
