"""`hf-cyclical` itself: its help, its commands, and what it says when something is missing."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib

import pytest
from support.started import ROOT, captured, run

from hf_cyclical import __version__
from hf_cyclical.cli import dispatch, main
from hf_cyclical.cli.dispatch import COMMANDS

NAMES = [
    *("prune", "compare", "push", "verify", "pack", "unpack", "figures", "linear", "presets"),
    *("speed", "predict", "export", "show"),
]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_command_is_on_the_path():
    assert PYPROJECT["project"]["scripts"] == {"hf-cyclical": "hf_cyclical.cli:main"}


def test_help_names_every_command_and_imports_no_library():
    code = "import json, sys\nfrom hf_cyclical.cli import main\nmain(['--help'])\nprint(json.dumps([*sys.modules]))"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    *lines, modules = out.splitlines()
    assert {line.split()[0] for line in lines if line.startswith("  ")} == set(NAMES)
    assert not {"torch", "numpy", "transformers", "accelerate", "datasets", "timm"} & set(json.loads(modules))


def test_without_a_command_there_is_help_and_exit_code_2():
    code, out, err = captured(main)
    assert (code, out) == (2, "")
    assert err == captured(main, "--help")[1]


def test_version():
    assert captured(main, "--version") == (0, f"hf_cyclical {__version__}\n", "")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("word", ["--help", "--help-all"])
def test_every_command_explains_itself_under_the_name_that_the_reader_types(name, word):
    code, out, err = captured(main, name, word)
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: hf-cyclical {name} ")
    assert "scripts/" not in out
    arguments = re.findall(r"^  (?:-h, )?(--[\w-]+)", out, flags=re.MULTILINE)
    assert len(arguments) == len(set(arguments))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pruen"], "there is no command 'pruen': did you mean prune?"),
        (["x"], "there is no command 'x': choose one of prune, compare,"),
        (["presets", "cifar10-resnet21"], "preset 'cifar10-resnet21' is unknown: did you mean cifar10-resnet20?"),
        (["verify"], "arguments are required: SOURCE"),
        (["pack", "nowhere", "--fast"], "--fast"),
    ],
)
def test_a_mistake_is_one_line(words, said):
    code, out, err = captured(main, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert said in err


@pytest.mark.parametrize("name", ["prune", "compare", "verify", "push"])
def test_a_mistyped_argument_is_told_before_the_trainer_is_imported(name):
    words = {"verify": ["x"], "push": ["x", "y/z"]}.get(name, [])
    code = f"""
import sys
from hf_cyclical.cli import main
try:
    main({[name, *words, "--leaning_rate", "3"]})
except SystemExit as ended:
    print(ended.code, "transformers.trainer" in sys.modules, "timm" in sys.modules, "datasets" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False", "False", "False"]
    assert done.stderr.startswith("error: ")
    assert "--leaning_rate" in done.stderr


class TestMissingExtras:
    @pytest.mark.parametrize(
        ("name", "module", "extra"),
        [
            ("prune", "datasets", "run"),
            ("prune", "matplotlib", "run"),
            ("compare", "matplotlib", "run"),
            ("figures", "matplotlib", "run"),
            ("speed", "llvmlite", "fast"),
            ("export", "onnxruntime", "onnx"),
            ("show", "gradio", "show"),
        ],
    )
    def test_are_named_in_one_line_and_help_is_there_without_them(self, name, module, extra, monkeypatch):
        found = importlib.util.find_spec
        monkeypatch.setattr(dispatch, "find_spec", lambda asked: None if asked == module else found(asked))
        code, out, err = captured(main, name, "anything")
        assert (code, out) == (2, "")
        said = f'error: {name} needs {module}, which is not installed: pip install "hf_cyclical[{extra}]"\n'
        assert err == said
        assert captured(main, name, "--help")[0] == 0

    def test_would_be_installed_by_the_extra_that_is_named(self):
        extras = PYPROJECT["project"]["optional-dependencies"]
        for command in COMMANDS.values():
            for module in command.needs:
                packages = [re.match(r"[\w-]+", line)[0] for line in extras[dispatch._EXTRAS[module]]]
                assert module in packages


class TestPresets:
    def test_are_listed(self):
        code, out, _ = captured(main, "presets")
        assert code == 0
        assert out == captured(main, "prune", "--preset", "list")[1]

    def test_are_explained_with_the_papers_words(self):
        code, out, _ = captured(main, "presets", "cifar10-resnet20")
        assert code == 0
        row = next(line for line in out.splitlines() if line.startswith("--learning_rate "))
        assert row.split()[1] == "0.01"
        assert 'paper: "we start fine-tuning with a learning rate of 1e-2' in row


class TestHelpOfARun:
    def test_is_short_and_all_of_it_is_there_if_wanted(self):
        short, complete = (captured(main, "prune", word)[1] for word in ("--help", "--help-all"))
        assert len(short.splitlines()) <= 80
        for name in ("--target_sparsity", "--model_name_or_path", "--dataset_name", "--learning_rate", "--push_to_hub"):
            assert name in short
        assert "--adam_beta1" not in short
        assert "--adam_beta1" in complete
        assert "--no_" not in complete
        assert "--adam-beta1" not in complete

    def test_knows_every_argument_that_it_shows(self):
        from hf_cyclical.cli.help import _LINES

        complete = captured(main, "prune", "--help-all")[1]
        assert not [name for name in _LINES if not re.search(rf"^  --{name}\b", complete, flags=re.MULTILINE)]


def test_python_m_and_accelerate_launch_m_start_it(tmp_path):
    launch = [sys.executable, "-m", "accelerate.commands.launch", "-m", "hf_cyclical"]
    code, out, err = run(launch, "prune", "--plan", "--target_sparsity", 0.9, "--output_dir", tmp_path / "out")
    assert code == 0, err
    assert "Plan: cyclical, sparsity 0.9," in out
    code, out, err = run([sys.executable, "-m", "hf_cyclical"], "--version")
    assert (code, out) == (0, f"hf_cyclical {__version__}\n")
