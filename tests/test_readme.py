"""The README's code blocks are run, and its commands are the ones that CI and these tests use."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import HUNG
from support.started import prune

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


SCRIPT_LINES = [
    line
    for block in blocks("bash")
    for line in block.splitlines()
    if line.startswith("accelerate launch scripts/prune.py")
]


def test_python_blocks_run_in_order(tmp_path):
    code = "\n".join(blocks("python"))
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=HUNG)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("0.90\n")
    assert "cycle 2" in result.stdout
    assert (tmp_path / "pruned-digits" / "model.safetensors").is_file()


def test_there_are_command_lines():
    assert len(SCRIPT_LINES) >= 3


@pytest.mark.parametrize("line", SCRIPT_LINES)
def test_command_lines_make_a_plan(line, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(line)[3:]
    assert prune(*arguments, *(["--plan"] if "--plan" not in arguments else [])) == 0
    assert "Plan: " in capsys.readouterr().out


def test_the_two_commands_are_what_ci_and_the_main_job_test_use():
    install_and_run, install_and_test = (b.strip() for b in blocks("bash") if b.startswith("python3 -m venv"))
    assert install_and_run.endswith("&& accelerate launch scripts/prune.py")
    environment, activate, install, test = install_and_test.split(" && ")
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    # With the versions that passed; CI without, so that it finds what the newest ones break.
    assert install_and_run.split(" && ")[2].endswith(" -c constraints.txt")
    install = install.removesuffix(" -c constraints.txt").replace("install", "install --quiet")
    commands = [line for line in ci if line.startswith((environment[:7], ". ", "pip", "pytest"))]
    assert commands[:4] == [environment, activate, install, test]
    assert commands[4:] == ['pip install --quiet -e ".[test,show]"', "pytest tests/show"]
