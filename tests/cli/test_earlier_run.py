"""A run in a folder that holds another: nothing of it is lost without a word."""

import pytest
from support.started import SHORT, prune

from hf_cyclical import load_report


@pytest.fixture
def start(tmp_path):
    return lambda *words: prune(*SHORT, "--output_dir", str(tmp_path / "out"), *words)


@pytest.fixture
def kept(start, tmp_path):
    """All files of a finished run."""
    assert start() == 0

    def files():
        return {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}

    before = files()
    return lambda: files() == before


def refused(capsys, start, *words):
    capsys.readouterr()
    with pytest.raises(SystemExit):
        start(*words)
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("error: ")
    return lines[-1]


def test_a_model_of_another_command(capsys, start, kept, tmp_path):
    text = refused(capsys, start, "--seed", "7")
    assert "holds a model that was made by `hf-cyclical prune" in text
    assert text.endswith("name another --output_dir, or add --overwrite to replace it")
    assert kept()
    assert start("--overwrite", "true", "--seed", "7") == 0
    assert not kept()
    assert "--overwrite" not in load_report(tmp_path / "out").about["command"]
    assert start("--seed", "7") == 0


def test_the_same_command_gives_the_same_again(start, kept, tmp_path):
    weights = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert start() == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == weights


def test_a_model_without_a_report(capsys, start, kept, tmp_path):
    (tmp_path / "out" / "pruning_report.json").unlink()
    assert "holds a model: name another --output_dir" in refused(capsys, start)


def test_a_run_that_was_not_finished(capsys, start, kept, tmp_path):
    for name in ("pruning_report.json", "model.safetensors"):
        (tmp_path / "out" / name).unlink()
    text = refused(capsys, start)
    assert "of a run that was not finished: add --resume auto to go on with it" in text
    assert start("--resume", "auto") == 0


def test_what_is_replaced_leaves_no_checkpoint_to_resume_from(start, kept, tmp_path):
    of_the_first = tmp_path / "out" / "checkpoint-24"
    of_the_first.rename(tmp_path / "out" / "checkpoint-99")
    assert start("--overwrite", "--seed", "7") == 0
    assert of_the_first.exists()  # the new run's own
    assert not (tmp_path / "out" / "checkpoint-99").exists()


def test_a_file_that_has_changed_is_another_command(capsys, tmp_path):
    file, out = tmp_path / "settings.yaml", ["--output_dir", str(tmp_path / "out")]
    settings = "max_steps: 24\ndense_epochs: 0\ncycles: 2\ntarget_sparsity: "
    file.write_text(f"{settings}0.8\n")
    assert prune(str(file), *out) == 0
    made = load_report(tmp_path / "out").about["command"]
    assert "--target_sparsity 0.8" in made
    assert str(file) not in made
    file.write_text(f"{settings}0.5\n")
    with pytest.raises(SystemExit):
        prune(str(file), *out)
    assert "holds a model that was made by `hf-cyclical prune" in capsys.readouterr().err
    assert load_report(tmp_path / "out").config["target_sparsity"] == 0.8
