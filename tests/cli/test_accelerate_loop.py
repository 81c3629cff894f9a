"""scripts/accelerate_loop.py on real processes: one and two agree, and resumed is as good as whole."""

import runpy
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.processes import on_processes
from transformers import ViTConfig, ViTForImageClassification

SCRIPT = Path(__file__).parents[2] / "scripts" / "accelerate_loop.py"
# Two cycles in three epochs: the first ends inside an epoch, where resuming is hardest.
SHORT = ["--epochs", "3", "--cycles", "2", "--delta_t", "5", "--target_sparsity", "0.9"]


def run_script(rank, arguments):
    sys.argv = [str(SCRIPT), *SHORT, *map(str, arguments)]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def run(processes, folder, *arguments):
    on_processes(processes, run_script, [*arguments, "--output_dir", folder])
    return load_file(folder / "model.safetensors"), last_state(folder)


def last_state(folder):
    return torch.load(max(folder.glob("state-*")) / "custom_checkpoint_0.pkl")


def without_batch_norm(folder):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_labels=10, **sizes)).save_pretrained(folder)
    return folder


def test_it_is_short():
    assert len(SCRIPT.read_text().splitlines()) < 85


def test_two_processes_do_what_one_does_with_twice_the_batch(tmp_path):
    model = ["--learning_rate", 0.01, "--model", without_batch_norm(tmp_path / "vit")]
    weights, state = run(1, tmp_path / "1", "--batch_size", 64, *model)
    others, other = run(2, tmp_path / "2", "--batch_size", 32, *model)
    assert state["t"] == other["t"] == 3 * (898 // 64)
    for name, mask in state["masks"].items():
        assert torch.equal(mask, other["masks"][name]), name
    for name, weight in weights.items():
        torch.testing.assert_close(weight, others[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_resumed_run_ends_as_one_without_a_break(tmp_path, processes):
    weights, state = run(processes, tmp_path / "whole")
    first, second = sorted((tmp_path / "whole").glob("state-*"))
    shutil.copytree(first, tmp_path / "again" / first.name)
    shutil.copytree(second, tmp_path / "again" / "saving", ignore=lambda folder, names: names[:2])  # killed in a save
    resumed, last = run(processes, tmp_path / "again", "--resume")
    for name, weight in weights.items():
        assert torch.equal(weight, resumed[name]), name
    for name, mask in state["masks"].items():
        assert torch.equal(mask, last["masks"][name]), name


def test_a_new_run_does_not_mix_with_an_old_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--output_dir", str(tmp_path)])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert exit_.value.code == 2
    assert "exists: name another folder, or resume it with --resume" in capsys.readouterr().err
