"""The rooms of the package: what importing them loads, what they offer, and that nobody reaches past that."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import HUNG

import hf_cyclical
from hf_cyclical.methods import METHODS, SHARES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hf_cyclical"
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
PACKED = ROOT / "tests" / "files" / "packed"
SOURCES = [path for folder in ("hf_cyclical", "scripts", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]


def fresh(code, *arguments):
    """What code prints in a new process, as JSON."""
    command = [sys.executable, "-c", f"import json, sys\n{code}", *map(str, arguments)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HUNG)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_at_the_top_level_there_are_only_rooms_and_what_all_of_them_share():
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py", "config.py", "methods.py"}


def test_only_the_table_of_methods_and_the_paper_spell_the_names_of_methods_and_shares():
    names = {*METHODS, *SHARES}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} has {node.value!r}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "methods.py" and "paper" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert found == []


def test_no_file_is_long():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path: length for path, length in lengths.items() if length > 300} == {}


def test_no_test_asks_how_fast_the_machine_is():
    """A wait is as long as for what hangs, or so short that it is meant to end; durations are of CPU time."""
    clocks = {"perf_counter", "monotonic", "time"}
    found = []
    for path in (path for path in SOURCES if "tests" in path.parts):
        for node in ast.walk(ast.parse(path.read_text())):
            waits = [node.value] if isinstance(node, ast.keyword) and node.arg == "timeout" else []
            if isinstance(node, ast.FunctionDef):
                named = node.args.args[-len(node.args.defaults) :] if node.args.defaults else []
                waits = [d for a, d in zip(named, node.args.defaults, strict=True) if a.arg == "timeout"]
            limits = [wait.value for wait in waits if isinstance(wait, ast.Constant) and wait.value is not None]
            limited = any(1 < limit < HUNG for limit in limits)
            parts = [part for part in ast.walk(node) if isinstance(part, ast.Call)] * isinstance(node, ast.Compare)
            if limited or clocks & {getattr(part.func, "attr", None) for part in parts}:
                found.append(f"{path.relative_to(ROOT)}:{(node if hasattr(node, 'lineno') else waits[0]).lineno}")
    assert found == []


class TestImport:
    def test_of_the_package_loads_no_library(self):
        loaded = fresh("import hf_cyclical\nprint(json.dumps(sorted(sys.modules)))")
        assert not {"torch", "numpy", "transformers", "timm", "datasets"} & set(loaded)
        assert {name for name in loaded if name.startswith("hf_cyclical")} == {"hf_cyclical"}

    def test_of_core_loads_nothing_of_hugging_face(self):
        loaded = fresh("import hf_cyclical.core\nprint(json.dumps(sorted(sys.modules)))")
        assert "torch" in loaded
        assert not {"transformers", "timm", "datasets", "accelerate", "huggingface_hub"} & set(loaded)
        assert "torch.distributed.tensor" not in loaded  # it takes long, and only split weights need it
        assert {".".join(name.split(".")[:2]) for name in loaded if name.startswith("hf_cyclical.")} == {
            "hf_cyclical.core"
        }

    def test_of_formats_loads_no_library_of_models(self):
        code = "import hf_cyclical.formats as room\n[getattr(room, name) for name in room.__all__]\n"
        loaded = fresh(f"{code}print(json.dumps(sorted(sys.modules)))")
        assert "hf_cyclical.formats.codec" in loaded
        assert not {"transformers", "timm", "datasets", "accelerate", "huggingface_hub"} & set(loaded)


# A name of timm, and transformers' own from_pretrained, with packed weights of that architecture.
USE = """
import timm
from transformers import AutoModelForImageClassification
model = AutoModelForImageClassification.from_pretrained(sys.argv[1])
zeros = sum(int((p == 0).sum()) for p in model.parameters() if p.ndim > 1)
names = [name for name in timm.list_models("cifar_*") if timm.create_model(name) is not None]
print(json.dumps([names, zeros]))
"""
BEFORE = {
    "hf_cyclical first": """
import importlib.util
import hf_cyclical
assert not {"timm", "transformers", "torch"} & set(sys.modules)
assert importlib.util.find_spec("timm").loader  # some only ask whether it is there
""",
    "hf_cyclical after transformers is found, and before it is used": "import transformers\nimport hf_cyclical",
    "hf_cyclical last": "import timm\nfrom transformers import AutoModelForImageClassification\nimport hf_cyclical",
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_networks_and_packed_weights_are_known_whatever_is_imported_first(before):
    names, zeros = fresh(before + USE, PACKED)
    assert set(names) == {"cifar_mobilenet", "cifar_resnet8", "cifar_resnet20", "cifar_resnet56", "cifar_vgg14"}
    assert zeros == 67_321  # as the report of that run says


def test_the_trainer_imports_nothing_that_uploads():
    code = """
import hf_cyclical.training.trainer, hf_cyclical.training.plan
print(json.dumps(sorted(name for name in sys.modules if name.startswith("hf_cyclical.hub."))))
"""
    assert fresh(code) == []


class TestPublicNames:
    def test_of_the_root_are_all_there(self):
        assert {name: getattr(hf_cyclical, name) for name in hf_cyclical.__all__}
        assert set(hf_cyclical.__all__) <= set(dir(hf_cyclical))

    @pytest.mark.parametrize("room", ROOMS)
    def test_of_a_room_are_all_there(self, room):
        module = importlib.import_module(f"hf_cyclical.{room}")
        assert module.__all__
        assert {name: getattr(module, name) for name in module.__all__}
        assert set(module.__all__) <= set(dir(module))

    def test_that_do_not_exist_are_said_so(self):
        with pytest.raises(AttributeError, match="module 'hf_cyclical' has no attribute 'prunes'"):
            hf_cyclical.prunes  # noqa: B018 - asking is the test
        with pytest.raises(AttributeError, match=r"module 'hf_cyclical\.models' has no attribute 'loads'"):
            importlib.import_module("hf_cyclical.models").loads  # noqa: B018


def imported(path):
    """What a file imports of the rooms, as (room, module or name in it, line)."""
    here = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
        else:
            parent = list(here[: len(here) - node.level + (path.name == "__init__.py")]) if node.level else []
            base = [*parent, *(node.module.split(".") if node.module else [])]
            modules = [[*base, alias.name] for alias in node.names]
        for parts in modules:
            if parts[0] == "hf_cyclical" and len(parts) > 2 and parts[1] in ROOMS:
                yield parts[1], parts[2], node.lineno


def may_look_inside(path, room):
    """Whether a file is of a room, or one of its tests."""
    return path.relative_to(ROOT).parts[:2] in (("hf_cyclical", room), ("tests", room))


def test_nobody_reaches_into_another_room():
    offered = {room: importlib.import_module(f"hf_cyclical.{room}").__all__ for room in ROOMS}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name} of {room}"
        for path in SOURCES
        for room, name, line in imported(path)
        if name not in offered[room] and not may_look_inside(path, room)
    ]
    assert found == []


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_a_readme_of_one_screen(room):
    lines = (PACKAGE / room / "README.md").read_text().splitlines()
    assert len(lines) <= 40
