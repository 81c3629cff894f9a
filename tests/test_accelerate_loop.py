"""scripts/accelerate_loop.py in real processes: one and two agree, and resumed is as good as whole."""

import json
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import ViTConfig, ViTForImageClassification

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "accelerate_loop.py"
# Two cycles in three epochs: the first ends inside an epoch, where resuming is hardest.
SHORT = ["--epochs", "3", "--cycles", "2", "--delta_t", "5", "--target_sparsity", "0.9"]
# Imports take longer than these runs, so that they are made once: each run is a process of its own after them. What the
# script ends with also leaves the weights of every process.
RUNNER = f"""
import json, multiprocessing, os, runpy, shutil, sys
from pathlib import Path
import accelerate, hf_cyclical.data, hf_cyclical.models
from safetensors.torch import save_file

def run(arguments):
    if "--resume" in arguments and os.environ.get("LOCAL_RANK", "0") == "0":  # as after a kill inside the second save
        whole, resumed = Path(arguments[-1].removesuffix("-resumed")), Path(arguments[-1])
        first, second = sorted(whole.glob("state-*"))
        shutil.copytree(first, resumed / first.name)
        shutil.copytree(second, resumed / "saving", ignore=lambda folder, names: names[:2])
    end_training = accelerate.Accelerator.end_training

    def leave_weights(accelerator):
        weights = accelerator.unwrap_model(accelerator._models[-1]).state_dict()
        save_file(weights, f"{{arguments[-1]}}/process-{{accelerator.process_index}}.safetensors")
        end_training(accelerator)

    accelerate.Accelerator.end_training = leave_weights
    sys.argv = ["accelerate_loop.py", *arguments]
    runpy.run_path({str(SCRIPT)!r}, run_name="__main__")

for port, arguments in json.loads(sys.argv[1]):
    os.environ |= {{"MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "False"}}
    process = multiprocessing.get_context("fork").Process(target=run, args=[arguments])
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(process.exitcode)
"""


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return str(free.getsockname()[1])


def start(processes: int, folder: Path, *runs: list[object]) -> str:
    runner = folder / "runner.py"
    runner.write_text(RUNNER)
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--master_port", free_port()]
    arguments = json.dumps([(free_port(), [*SHORT, *map(str, run)]) for run in runs])
    result = subprocess.run(
        [sys.executable, *(torchrun if processes > 1 else []), runner, arguments],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def vit(folder: Path) -> Path:
    """A network without BatchNorm, whose statistics are those of the batch on each process."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_labels=10, **sizes)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """For one and two processes a run `{processes}-resnet`, another that was resumed, and `{processes}-vit`."""
    folder = tmp_path_factory.mktemp("loop")
    model = vit(folder / "vit")
    for processes in (1, 2):
        resnet, resumed, small = (
            ["--output_dir", folder / f"{processes}-{name}"] for name in ("resnet", "resnet-resumed", "vit")
        )
        same_batch = ["--batch_size", 64 // processes, "--learning_rate", 0.01, "--model", model]
        out = start(processes, folder, resnet, ["--resume", *resumed], [*same_batch, *small])
        assert out.count("sparsity 0.9000") == 3  # the small network cannot hit it so closely
    return folder


def last_state(folder: Path) -> dict:
    return torch.load(max(folder.glob("state-*")) / "custom_checkpoint_0.pkl")


def test_it_is_short():
    assert len(SCRIPT.read_text().splitlines()) < 80


def test_two_processes_do_what_one_does_with_twice_the_batch(runs):
    one, two = (last_state(runs / f"{processes}-vit") for processes in (1, 2))
    assert one["t"] == two["t"] == 3 * (898 // 64)
    for name, mask in one["masks"].items():
        assert torch.equal(mask, two["masks"][name]), name
    one, two = (load_file(runs / f"{processes}-vit" / "model.safetensors") for processes in (1, 2))
    for name, weight in one.items():
        torch.testing.assert_close(weight, two[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("model", ["resnet", "vit"])
def test_both_processes_end_with_the_same_weights(runs, model):
    first, second = (load_file(runs / f"2-{model}" / f"process-{i}.safetensors") for i in (0, 1))
    for name, weight in first.items():
        assert torch.equal(weight, second[name]), name


@pytest.mark.parametrize("processes", [1, 2])
def test_a_resumed_run_ends_as_one_without_a_break(runs, processes):
    whole, resumed = runs / f"{processes}-resnet", runs / f"{processes}-resnet-resumed"
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (resumed, whole))
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name
    for name, mask in last_state(resumed)["masks"].items():
        assert torch.equal(mask, last_state(whole)["masks"][name]), name


def test_a_new_run_does_not_mix_with_an_old_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--output_dir", str(tmp_path)])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert exit_.value.code == 2
    assert "exists: name another folder, or go on with --resume" in capsys.readouterr().err
