"""Images with their channels innermost and bf16: faster, and no difference to masks, files and resumed runs."""

import functools

import pytest
import torch
from safetensors.torch import load_file
from support.started import SHORT, prune
from support.tiny import CYCLICAL, OrderedPruningTrainer, same_weights
from support.tiny_models import FAMILIES, save_family
from torch import nn
from torch.utils.data import Dataset
from transformers import PreTrainedConfig, PreTrainedModel, TrainerCallback

from hf_cyclical import load_report
from hf_cyclical.cli import Run, parse_arguments
from hf_cyclical.core import kept
from hf_cyclical.formats import pack_file, read_packed

FAST = ["--bf16", "--channels_last", "True"]
INNERMOST = {"kind": functools.partial(OrderedPruningTrainer, channels_last=True)}


class ColourNet(PreTrainedModel):
    """Two convolutions and a linear map; notes the layouts of the images that it sees, and the type of its features."""

    def __init__(self, seed=0):
        super().__init__(PreTrainedConfig())
        torch.manual_seed(seed)
        self.first, self.second, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3), nn.Linear(6, 3)
        self.norm = nn.BatchNorm2d(8)
        self.post_init()
        self.innermost, self.dtypes = set(), set()

    def forward(self, pixel_values, labels=None):
        x = self.first(pixel_values)
        self.innermost |= {t.is_contiguous(memory_format=torch.channels_last) for t in (pixel_values, x)}
        self.dtypes.add(x.dtype)
        logits = self.head(self.second(self.norm(x).relu()).mean((2, 3)))
        loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
        return {"loss": loss, "logits": logits}


class ColourImages(Dataset):
    """Random 6x6 images whose class is their strongest colour."""

    def __init__(self, n=96, seed=1):
        self.pixels = torch.randn(n, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
        self.labels = self.pixels.mean((2, 3)).argmax(1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"pixel_values": self.pixels[i], "labels": self.labels[i]}


@pytest.fixture
def make_colour_trainer(make_trainer):
    defaults = {"max_steps": 24, "save_strategy": "steps", "save_steps": 10}
    data = {"train_dataset": ColourImages(), "eval_dataset": ColourImages(48, 2)}

    def make(pruning=CYCLICAL, *, model=None, **arguments):
        return make_trainer(pruning, model=model or ColourNet(), **(defaults | data | arguments))

    return make


@pytest.mark.parametrize("pruning", [CYCLICAL, {"target_sparsity": 0}])
def test_images_are_given_with_their_channels_innermost_if_asked(make_colour_trainer, pruning):
    for arguments, expected in ((INNERMOST, {True}), ({}, {False})):
        trainer = make_colour_trainer(pruning, **arguments)
        trainer.train()
        trainer.evaluate()
        assert trainer.model.innermost == expected


def test_the_layout_of_images_leaves_weights_masks_and_momentum_alone(make_colour_trainer):
    trainer = make_colour_trainer(**INNERMOST)
    trainer.train()
    momenta = [state["momentum_buffer"] for state in trainer.optimizer.state.values()]
    for tensor in [*trainer.model.parameters(), *trainer.pruner.masks.values(), *momenta]:
        assert tensor.is_contiguous()


def test_the_layout_of_images_makes_no_difference_but_rounding(make_colour_trainer):
    trainers = [make_colour_trainer(max_steps=4, **arguments) for arguments in ({}, INNERMOST)]
    for trainer in trainers:
        trainer.train()
    for a, b in zip(*(trainer.model.parameters() for trainer in trainers), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_bf16_computes_in_it_and_keeps_weights_masks_and_files_as_they_were(make_colour_trainer, tmp_path):
    trainer = make_colour_trainer(bf16=True, **INNERMOST)
    trainer.train()
    trainer.save_model()
    assert trainer.model.dtypes == {torch.bfloat16}
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    assert {mask.dtype for mask in trainer.pruner.masks.values()} == {torch.bool}
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in trainer.model.state_dict().items())
    total = sum(mask.numel() for mask in trainer.pruner.masks.values())
    assert kept(trainer.pruner.masks) == total - round(0.9 * total)
    assert all(torch.equal(weights[name] != 0, mask) for name, mask in trainer.pruner.masks.items())


@pytest.mark.parametrize("ema_decay", [None, 0.9])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "innermost"])
@pytest.mark.parametrize("method", [CYCLICAL, {"method": "gradual_recovery", "target_sparsity": 0.9, "delta_t": 4}])
def test_a_resumed_run_goes_on_bit_for_bit(make_colour_trainer, tmp_path, method, layout, ema_decay):
    """Also if the model's owner has brought the weights into that layout, too."""

    def make(folder, seed):
        model = ColourNet(seed).to(memory_format=layout)
        pruning = method | {"ema_decay": ema_decay}
        return make_colour_trainer(pruning, model=model, output_dir=str(tmp_path / folder), bf16=True, **INNERMOST)

    whole = make("whole", 0)
    whole.train()
    resumed = make("resumed", 7)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-10"))
    assert same_weights(whole.model, resumed.model)
    assert all(torch.equal(whole.pruner.masks[n], resumed.pruner.masks[n]) for n in whole.pruner.masks)
    assert resumed.report.to_dict() == whole.report.to_dict()


def test_a_checkpoint_of_one_layout_holds_the_weights_of_another(make_colour_trainer, tmp_path):
    """Packed, too: what lies in files is in the order of the index."""
    model = ColourNet().to(memory_format=torch.channels_last)
    trainer = make_colour_trainer(model=model, **INNERMOST)
    trainer.train()
    trainer.save_model()
    saved = tmp_path / "run" / "model.safetensors"
    pack_file(saved, tmp_path / "packed")
    for weights in (load_file(saved), read_packed(tmp_path / "packed")):
        assert all(torch.equal(weights[name], value) for name, value in trainer.model.state_dict().items())


class Norms(TrainerCallback):
    def __init__(self):
        self.logged = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logged += [logs["grad_norm"]] if "grad_norm" in logs else []


def test_the_norm_of_gradients_is_measured_where_it_is_logged_and_changes_nothing(make_colour_trainer):
    models = []
    for strategy in ("steps", "no"):
        norms = Norms()
        trainer = make_colour_trainer(callbacks=[norms], logging_strategy=strategy, logging_steps=6)
        trainer.train()
        models.append(trainer.model)
        assert len(norms.logged) == (4 if strategy == "steps" else 0)
    assert same_weights(*models)


# The command line ----------------------------------------------------------------------------------------------------


def run_of(tmp_path, *words):
    return Run.build(parse_arguments([*SHORT, "--output_dir", str(tmp_path / "out"), *words], description=""))


def test_channels_are_innermost_for_convolutional_models_unless_told(tmp_path):
    assert run_of(tmp_path).trainer.channels_last
    assert not run_of(tmp_path, "--channels_last", "False").trainer.channels_last
    for family in FAMILIES:
        save_family(family, tmp_path / family)
        words = ["--dataset_name", "digits", "--model_name_or_path", str(tmp_path / family)]
        # The tiny ResNet has strided 1x1 convolutions of 8 channels, on which torch would end the process.
        usual = family not in ("ViT", "DeiT", "Swin", "ResNet")
        assert run_of(tmp_path, *words).trainer.channels_last == usual, family
    words = ["--dataset_name", "digits", "--model_name_or_path", str(tmp_path / "ViT")]
    assert run_of(tmp_path, *words, "--channels_last", "True").trainer.channels_last


def test_another_value_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run_of(tmp_path, "--channels_last", "maybe")
    assert "--channels_last" in capsys.readouterr().err


def test_a_run_in_bf16_is_resumed_bit_for_bit(tmp_path):
    arguments = [*SHORT, *FAST, "--save_steps", "5", "--save_total_limit", "5", "--augment", "cifar"]
    assert prune(*arguments, "--output_dir", str(tmp_path / "whole")) == 0
    checkpoint = str(tmp_path / "whole" / "checkpoint-10")
    assert prune(*arguments, "--output_dir", str(tmp_path / "resumed"), "--resume", checkpoint) == 0
    assert prune(*SHORT, "--output_dir", str(tmp_path / "plain")) == 0
    whole, resumed, plain = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "resumed", "plain"))
    assert whole.keys() == plain.keys()
    for name, weight in whole.items():
        assert weight.dtype == plain[name].dtype
        assert torch.equal(weight, resumed[name]), name
    assert load_report(tmp_path / "whole").cycles[-1].sparsity == load_report(tmp_path / "plain").cycles[-1].sparsity
