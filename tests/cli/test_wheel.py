"""The wheel, in an environment and a folder that know nothing of this clone."""

import importlib.util
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from support.patience import HUNG
from support.started import ROOT, SHORT

from hf_cyclical import __version__, load_report


def call(*command, **options):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    options |= {"env": environment, "capture_output": True, "text": True, "timeout": HUNG}
    done = subprocess.run([*map(str, command)], **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    # The test extra has the build backend; pip gets it where that is not installed.
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    call(sys.executable, "-m", "pip", "wheel", "--quiet", *isolation, "--no-deps", "--wheel-dir", folder, ROOT)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of an environment that has the wheel, and for all else the packages of this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "others.pth").write_text("\n".join(others))  # as paths alone: an editable hf_cyclical is not found
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    call(*pip, "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", wheel)
    return folder


def test_it_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"hf_cyclical", f"hf_cyclical-{__version__}.dist-info"}
    files = (path.relative_to(ROOT).as_posix() for path in (ROOT / "hf_cyclical").rglob("*") if path.is_file())
    assert {name for name in files if not name.endswith(".pyc")} <= set(names)


def test_a_shortened_main_job_runs_in_an_empty_folder(installed, tmp_path):
    where = call(installed / "bin" / "python", "-c", "import hf_cyclical; print(hf_cyclical.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed)
    words = [*SHORT, "--target_sparsity", "0.9"]
    out = call(installed / "bin" / "hf-cyclical", "prune", *words, cwd=tmp_path)
    assert "Plan: cyclical, sparsity 0.9," in out
    assert [path.name for path in tmp_path.iterdir()] == ["pruned"]
    report = load_report(tmp_path / "pruned")
    assert report.sparsity == pytest.approx(0.9, abs=1e-3)
    assert report.about["command"] == " ".join(["hf-cyclical prune", *words])
    assert (tmp_path / "pruned" / "model.safetensors").is_file()
