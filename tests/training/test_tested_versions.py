"""What is declared about versions agrees, and a newer one is named when the trainer is imported."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from hf_cyclical.training import TESTED, newer_than_tested

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DECLARED = [Requirement(line) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines]
APART = "gradio"  # takes an older pillow than constraints.txt has; .ci/run installs it for the tests of the page alone
DECLARED = [requirement for requirement in DECLARED if requirement.name not in (PROJECT["name"], APART)]


def constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def constrained():
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in constraints())}


def install(folder, **versions):
    """Make packages of these versions that are nothing but a name."""
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


class TestDeclarations:
    def test_constraints_are_names_and_versions(self):
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line) for line in constraints())

    def test_tested_versions_are_those_of_the_constraints(self):
        assert {canonicalize_name(name): version for name, version in TESTED.items()}.items() <= constrained().items()

    def test_none_is_left_out(self):
        """Of all that the package itself imports, the compiler of the sparse engine included."""
        imported = (*PROJECT["dependencies"], *EXTRAS["run"], *EXTRAS["fast"])
        assert set(TESTED) == {Requirement(line).name for line in imported}

    @pytest.mark.parametrize("requirement", DECLARED, ids=lambda requirement: requirement.name)
    def test_bounds_end_the_series_that_was_tested(self, requirement):
        name = canonicalize_name(requirement.name)
        assert name in constrained(), f"add {name} to constraints.txt"
        tested = Version(constrained()[name])
        bounds = {bound.operator: bound.version for bound in requirement.specifier}
        assert sorted(bounds) == ["<", ">="]
        series = tested.release[: bounds["<"].count(".") + 1]
        assert bounds["<"] == ".".join(map(str, (*series[:-1], series[-1] + 1)))
        assert Version(bounds[">="]) <= tested


class TestNewer:
    def test_the_ones_installed_here_are_found(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(install(tmp_path, timm="99.0", torch="98.1+cpu"))
        assert newer_than_tested().items() >= {"timm": "99.0", "torch": "98.1+cpu"}.items()

    @pytest.mark.parametrize(
        ("version", "newer"),
        [
            (TESTED["torch"], False),
            (f"{TESTED['torch']}+cpu", False),
            (f"{TESTED['torch']}rc1", False),
            ("2.6.0", False),
            (f"{TESTED['torch']}.1", True),
            ("2.100.0", True),
            ("99.0.dev20990101+cu130", True),
        ],
    )
    def test_versions_are_compared_as_versions(self, version, newer, tmp_path, monkeypatch):
        install(tmp_path, torch=version)
        monkeypatch.setattr(sys, "path", [str(tmp_path)])  # nothing else is installed there
        assert newer_than_tested() == ({"torch": version} if newer else {})

    def test_the_import_of_the_trainer_says_so_in_one_line(self, tmp_path):
        install(tmp_path, timm="99.0", **{name: TESTED[name] for name in TESTED if name != "timm"})
        code = "import sys, hf_cyclical.training.trainer; sys.stdout.write('imported')"
        found = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout == "imported"
        assert [line for line in found.stderr.splitlines() if "not tested" in line] == [
            f"hf_cyclical was not tested with timm 99.0 (tested: {TESTED['timm']}): if anything fails, "
            f"pip install timm=={TESTED['timm']}"
        ]


def test_the_tests_that_are_run_with_other_versions_exist():
    script = (ROOT / ".ci" / "versions").read_text()
    (names,) = re.findall(r"^tests=\((.*)\)$", script, flags=re.MULTILINE)
    assert [name for name in names.split() if not list(ROOT.glob(name))] == []
    assert {"tests/data", "tests/models", "tests/formats", "tests/training"} <= set(names.split())
    files = re.findall(r"hf_cyclical/[\w/]+\.py", script)
    assert files
    assert all((ROOT / file).is_file() for file in files)
