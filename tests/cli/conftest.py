import shutil

import pytest
from support.started import captured

from hf_cyclical.cli import main

SHORT = [
    "--max_train_samples",
    "128",
    "--max_eval_samples",
    "200",
    "--delta_t",
    "1",
    "--scale",
    "0.006",
    "--cycles",
    "2",
]
TWO = ["--methods", "one_shot", "cyclical", "--sparsities", "0.9", "--seeds", "1"]


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="session")
def command():
    """`hf-cyclical compare` in this process: exit code, output and errors."""
    return lambda *words: captured(main, "compare", *words)


@pytest.fixture
def compare(command, tmp_path):
    """It on the digits, with few images and epochs."""

    def call(*words, folder=tmp_path / "out", short=True):
        return command(*(SHORT if short else []), "--output_dir", folder, *words)

    return call


@pytest.fixture(scope="session")
def finished_once(command, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "out"
    code, out, err = command(*SHORT, *TWO, "--keep_models", "--output_dir", folder)
    assert code == 0, err
    return folder, out


@pytest.fixture
def finished(finished_once, tmp_path):
    """A folder in which two cells are finished."""
    return shutil.copytree(finished_once[0], tmp_path / "out")
