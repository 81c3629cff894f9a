"""`--distill` on the command line: its value, and models that cannot teach."""

import pytest
from support.started import call
from support.tiny_models import save_family

from hf_cyclical.cli import parse_arguments


@pytest.mark.parametrize(
    ("words", "weight", "temperature"),
    [
        (["--distill"], 0.5, 4.0),
        (["--distill", "0.9", "--distill_temperature", "2"], 0.9, 2.0),
        ([], None, None),
    ],
)
def test_has_a_weight_of_a_half_unless_told(words, weight, temperature):
    pruning = parse_arguments(
        ["--dataset_name", "digits", "--model_name_or_path", "some", *words], description=""
    ).pruning
    assert (pruning.distill, pruning.resolved("distill_temperature")) == (weight, temperature)


@pytest.mark.parametrize("dense_epochs", [0, 0.01])  # the latter is no update
def test_random_weights_do_not_teach(tmp_path, dense_epochs):
    words = ["--model_name_or_path", "cifar_resnet8", "--from_scratch", "--distill", "--dense_epochs", dense_epochs]
    code, _, err = call("--dataset_name", "digits", *words, "--output_dir", tmp_path / "out")
    assert code == 2
    assert "distill 0.5 has no dense teacher, as the weights of 'cifar_resnet8' would be random: add" in err


def test_nor_does_a_new_head_unless_it_is_trained_first(tmp_path):
    save_family("ResNet", tmp_path / "model")
    words = ["--model_name_or_path", tmp_path / "model", "--distill", "--output_dir", tmp_path / "out"]
    code, out, err = call("--dataset_name", "digits", *words, "--plan")
    assert code == 0, err
    assert "dense updates teaches, weight 0.5, temperature 4." in out
    code, _, err = call("--dataset_name", "digits", *words, "--dense_epochs", 0)
    assert code == 2
    assert "has no dense teacher, as the head of" in err


def test_after_a_dense_start_they_do(tmp_path):
    words = ["--from_scratch", "--model_name_or_path", "cifar_resnet8", "--dense_epochs", 2, "--distill", "--plan"]
    code, out, err = call("--dataset_name", "digits", *words, "--output_dir", tmp_path / "out")
    assert code == 0, err
    assert "dense updates teaches, weight 0.5, temperature 4." in out
    assert "after the 8 dense updates" in out  # of 4 an epoch
