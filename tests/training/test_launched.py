"""A user's own script, started by torchrun on a machine without accelerators."""

import re

import pytest
from support.started import ROOT, TORCHRUN, start

SCRIPT = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from support.tiny import build_trainer
from hf_cyclical.core import leave_group
folder, use_cpu = sys.argv[1], sys.argv[2] == "True"
try:
    pruning = {{"target_sparsity": 0.7, "cycles": 2, "delta_t": 3}}
    trainer = build_trainer(folder, pruning, max_steps=24, save_strategy="steps", save_steps=5, use_cpu=use_cpu)
    trainer.train()
    sys.stdout.write(f"ended as process {{trainer.args.process_index}} of {{trainer.args.world_size}}|")
    leave_group()
except Exception as error:
    sys.stdout.write(f"{{type(error).__name__}}: {{error}}|")
    raise
"""


@pytest.mark.parametrize("use_cpu", [True, False])
def test_two_processes_train_one_model_or_are_told_how(tmp_path, use_cpu):
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(SCRIPT)
    process = start(TORCHRUN, script, folder, use_cpu)
    out, err = process.communicate()
    said = set(re.findall(r"(PruningError: .*?|ended as .*?)\|", out))
    if use_cpu or process.returncode == 0:  # older versions of accelerate use the CPU where there is nothing else
        assert process.returncode == 0, err
        assert said == {"ended as process 0 of 2", "ended as process 1 of 2"}
        return
    assert process.returncode == 1
    assert said == {
        "PruningError: 2 processes were started and each would train alone into one output_dir, as there is no "
        "accelerator and use_cpu is off: pass use_cpu=True to TrainingArguments"
    }
    assert not list(folder.glob("checkpoint-*"))
