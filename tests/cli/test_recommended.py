"""A model and data without a preset: the plan says what was chosen, arguments win, presets stay the paper's."""

import json

import pytest
import torch
from safetensors.torch import load_file
from support.started import call, prune
from support.tiny_models import save_family

from hf_cyclical import load_report
from hf_cyclical.cli import parse_arguments
from hf_cyclical.cli.run import Run

DIGITS = ["--dataset_name", "digits", "--max_train_samples", "128", "--max_eval_samples", "100"]
DIGITS += ["--per_device_train_batch_size", "32"]


@pytest.fixture
def model(tmp_path):
    """A tiny ResNet for three classes, of which the digits have ten."""
    save_family("ResNet", tmp_path / "model")
    return ["--model_name_or_path", str(tmp_path / "model"), "--output_dir", str(tmp_path / "out"), *DIGITS]


def test_the_plan_says_what_was_chosen_and_why(model):
    code, out, err = call(*model, "--target_sparsity", "0.9", "--plan")
    assert code == 0, err
    lines = [line.strip() for line in out.splitlines()]
    start = lines.index("Chosen here, as no argument says otherwise:")
    assert "learning_rate 0.017678: near that of dense training, for 32 images an update" in lines[start + 4]
    assert "share lamp: layers that need more weights keep more of them than with the paper's uniform share" in lines
    assert "pruning_epochs 500: 2,000 updates, as many as a cycle needs to recover" in out
    assert "dense_epochs 50: the head is new to these classes: all weights are trained densely first" in out
    assert "2,200 optimizer updates: 200 dense, 2,000 in 1 cycle" in out  # 4 an epoch
    assert "Distillation: the model as it is after the 200 dense updates teaches" in out


def test_allr_is_refused_where_the_head_is_new(model):
    code, _, err = call(*model, "--allr", "--plan")
    assert code == 2
    assert "error: allr 0.1 needs trained weights, and the head of '" in err
    assert err.endswith("would be random: leave allr out\n")


def test_dense_updates_are_out_of_updates(model):
    code, _, err = call(*model, "--dense_updates", "100", "--plan")
    assert code == 2
    assert err == "error: dense_updates 100 is out of max_steps, which is not given: give it, or use dense_epochs\n"


def test_a_setting_without_a_second_cycle_is_told(model):
    code, out, err = call(*model, "--init_sparsity", "0.3", "--plan")
    assert code == 0, err
    assert "init_sparsity 0.3 has no effect, as there is no second cycle." in out


def test_what_the_user_says_wins(model):
    words = ["--learning_rate", "0.3", "--share", "uniform", "--cycles", "2", "--dense_epochs", "1"]
    args = parse_arguments([*model, *words, "--num_train_epochs", "9"], description="")
    Run.build(args)
    assert (args.training.learning_rate, args.training.num_train_epochs) == (0.3, 9)
    assert (args.pruning.share, args.pruning.cycles, args.pruning.dense_epochs) == ("uniform", 2, 1)
    assert (args.pruning.tail, args.pruning.lr_shape) == (0.2, "cosine")  # the rest is recommended


@pytest.mark.parametrize("words", [[], ["--preset", "digits"]])
def test_presets_stay_the_papers(tmp_path, words):
    args = parse_arguments([*words, "--output_dir", str(tmp_path / "out")], description="")
    before = args.pruning, args.training.learning_rate, args.training.num_train_epochs
    run = Run.build(args)
    assert (args.pruning, args.training.learning_rate, args.training.num_train_epochs) == before
    assert run.notes == []


def test_a_new_head_is_trained_first_with_a_preset_too(model):
    args = parse_arguments(["--preset", "digits", *model], description="")
    run = Run.build(args)
    assert args.training.num_train_epochs == 667 + 50
    assert run.trainer.plan().cycles[0].start == 200
    assert [note.split()[0] for note in run.notes[1:]] == ["dense_epochs"]


def test_a_run_prunes_no_random_head_and_resumes_to_the_same_model(model, tmp_path):
    short = ["--max_steps", "30", "--save_steps", "4", "--save_total_limit", "9", "--target_sparsity", "0.8"]
    assert prune(*model, *short) == 0
    report = load_report(tmp_path / "out")
    assert report.dense_updates == 6  # a fifth
    assert min(update for update, *_ in report.masks) == 6
    assert (report.config["cycles"], report.config["delta_t"], report.config["share"]) == (1, 1, "lamp")
    whole = load_file(tmp_path / "out" / "model.safetensors")
    for at in (4, 12):  # in the dense start, and with masks and a teacher
        state = json.loads((tmp_path / "out" / f"checkpoint-{at}" / "pruning_state.json").read_text())
        assert state["settings"]["distill"] == 0.5
        again = [*model, *short, "--resume", str(tmp_path / "out" / f"checkpoint-{at}")]
        again[again.index("--output_dir") + 1] = str(tmp_path / f"from-{at}")
        assert prune(*again) == 0
        resumed = load_file(tmp_path / f"from-{at}" / "model.safetensors")
        assert all(torch.equal(weight, resumed[name]) for name, weight in whole.items())


@pytest.mark.parametrize(
    ("family", "pattern"), [("MobileNetV2", "*.conv_3x3.convolution"), ("EfficientNet", "*.depthwise_conv")]
)
def test_depthwise_convolutions_stay_dense(tmp_path, family, pattern):
    save_family(family, tmp_path / "model")
    words = ["--model_name_or_path", str(tmp_path / "model"), *DIGITS, "--output_dir", str(tmp_path / "out")]
    args = parse_arguments([*words, "--max_steps", "30"], description="")
    run = Run.build(args)
    convolutions = [m for m in run.trainer.model.modules() if isinstance(m, torch.nn.Conv2d)]
    deep = [m for m in convolutions if 1 < m.groups == m.in_channels]
    assert deep
    assert pattern in args.pruning.exclude
    pruned = {id(p) for p in run.trainer.prunable_parameters().values()}
    assert {m for m in convolutions if id(m.weight) not in pruned} == set(deep)


@pytest.mark.parametrize(
    ("labels", "trained"),
    [([f"animal {i}" for i in range(10)], True), ([str(i) for i in range(10)], False), (None, False)],
)
def test_a_head_of_as_many_other_classes_is_trained_first(tmp_path, labels, trained):
    labels = labels or [f"LABEL_{i}" for i in range(10)]
    save_family("ResNet", tmp_path / "model", labels)
    words = ["--model_name_or_path", str(tmp_path / "model"), "--output_dir", str(tmp_path / "out"), *DIGITS]
    args = parse_arguments(words, description="")
    Run.build(args)
    assert (args.pruning.dense_epochs > 0) == trained


@pytest.mark.parametrize("words", [["--preset", "digits"], ["--dense_epochs", "0"]])
def test_or_the_plan_says_so(tmp_path, words):
    save_family("ResNet", tmp_path / "model", [f"animal {i}" for i in range(10)])
    words = ["--model_name_or_path", str(tmp_path / "model"), "--output_dir", str(tmp_path / "out"), *DIGITS, *words]
    code, out, err = call(*words, "--distill", "--plan")
    assert code == 0, err
    assert "The model's classes have other names than the data's: if they are other classes, train the head" in out
    code, out, err = call(*words, "--dense_epochs", "2", "--plan")
    assert code == 0, err
    assert "other names" not in out
