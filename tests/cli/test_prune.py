"""`hf-cyclical prune` as its users start it: the main job end to end, files, bad input."""

import json
import re

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from support.started import LAUNCH, PYTHON, SHORT, call, prune, run
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
)

from hf_cyclical import load_report
from hf_cyclical.data import DataArguments, load_image_data
from hf_cyclical.models import load_image_model


@pytest.fixture(scope="module")
def main_job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("main") / "pruned"
    code, out, err = run(LAUNCH, "--pruning_epochs", 250, "--output_dir", folder)  # of 667
    assert code == 0, err
    return folder, out, err


class TestMainJob:
    def test_shows_what_the_paper_claims(self, main_job):
        folder, out, _ = main_job
        report = load_report(folder)
        accuracies = [cycle.metrics["accuracy"] for cycle in report.cycles]
        assert len(accuracies) == 5
        assert accuracies[-1] > accuracies[0] + 0.03
        assert accuracies[-1] > 0.9
        assert report.dense["accuracy"] > 0.95
        assert all(cycle.sparsity == pytest.approx(0.98, abs=1e-3) for cycle in report.cycles)
        assert report.cycles[-1].mask_distance > report.cycles[1].mask_distance > 0
        assert report.table() in out

    def test_prints_the_plan_first(self, main_job):
        _, out, _ = main_job
        assert out.index("Plan: cyclical, sparsity 0.98, share uniform") < out.index("cycle 5")
        assert "1 process, cpu, 60 images an update" in out
        assert "74,800 of the model's 75,290 weights can be pruned, in 8 layers" in out

    def test_leaves_a_model_that_loads_and_is_as_good_and_as_sparse_as_reported(self, main_job):
        folder, _, _ = main_job
        model = AutoModelForImageClassification.from_pretrained(folder).eval()
        data = load_image_data(DataArguments("digits"))
        _, evaluation = data.for_model(load_image_model(str(folder), data.labels), seed=0)
        batch = evaluation.__getitems__(list(range(len(evaluation))))
        with torch.no_grad():
            right = (model(batch["pixel_values"]).logits.argmax(-1) == batch["labels"]).float().mean()
        report = load_report(folder)
        assert float(right) == pytest.approx(report.cycles[-1].metrics["accuracy"])
        for layer in report.layers:
            assert int((model.get_parameter(layer.name) != 0).sum()) == layer.kept

    def test_the_folder_loads_in_timm_too(self, main_job):
        folder, _, _ = main_job
        native = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        wrapped = AutoModelForImageClassification.from_pretrained(folder).eval()
        x = torch.randn(4, 3, 8, 8)
        with torch.no_grad():
            assert torch.allclose(native(x), wrapped(x).logits, atol=1e-5)

    def test_leaves_figure_and_report(self, main_job):
        folder, _, _ = main_job
        assert (folder / "pruning_run.png").read_bytes().startswith(b"\x89PNG")
        about = load_report(folder).about
        assert about["model"] == "cifar_resnet8"
        assert set(about["versions"]) == {"hf_cyclical", "torch", "transformers", "accelerate", "timm"}

    def test_shows_progress(self, main_job):
        _, _, err = main_job
        assert "cycle 3/5, sparsity 0.9" in err


def test_plan_prints_only_the_plan(tmp_path):
    code, out, _ = call("--plan", "--output_dir", tmp_path / "out", *SHORT, "--delta_t", 4, "--learning_rate", 0.05)
    assert code == 0
    assert "24 optimizer updates: 0 dense, 24 in 2 cycles" in out
    assert "cycle 2: 12 to 20 by 4, 22" in out  # local 0, 4, 8 and round(0.8 * 12) = 10
    assert "0.05 to 0.00085" in out  # the cosine's update 11 of 12: 0.05 * (1 + cos(11/12 pi)) / 2
    assert not (tmp_path / "out" / "config.json").exists()


def test_every_method_runs_from_a_file_and_its_arguments_can_be_overridden(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("method: gradual\ntarget_sparsity: 0.5\nlearning_rate: 1e-3\nmax_steps: 10\ndense_epochs: 0\n")
    code, out, err = call(file, "--target_sparsity", 0.8, "--output_dir", tmp_path / "out")
    assert code == 0, err
    report = load_report(tmp_path / "out")
    assert report.config["method"] == "gradual"
    assert report.config["target_sparsity"] == 0.8
    assert report.schedule[0] == (0, 1e-3)
    assert "cycle 1" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target_sparsity", "1.5"], "target_sparsity 1.5 must be in [0, 1)"),
        (["--cycles", "0"], "cycles 0 must be a whole number of at least 1"),
        (["--delta_t", "0"], "delta_t 0 must be"),
        (["--ramp_fraction", "0"], "ramp_fraction 0.0 must be in (0, 1]"),
        (["--max_steps", "5", "--dense_epochs", "0"], "cycles 5 takes at least 10 updates"),
        (["--method", "cyclic"], "invalid choice: 'cyclic'"),
        (["--method", "gradual", "--cycles", "3"], "cycles 3 has no meaning for method gradual"),
        (["--preset", "digit"], "preset 'digit' is unknown: did you mean digits?"),
        (["--model_name_or_path", "cifar_resnet9", "--dataset_name", "digits"], "cifar_resnet9"),
        (["--model_name_or_path", "cifar_resnet8"], "dataset_name is missing"),
        (["--exclude", "*.fcc"], "exclude pattern '*.fcc' matches no layer"),
        (["--exclude", "*"], "nothing to prune"),
        (["--target_sparcity", "0.9"], "--target_sparcity is unknown: did you mean --target_sparsity?"),
        (["missing.yaml"], "'missing.yaml' cannot be read"),
        (["--resume_from_checkpoint", "nowhere"], "'nowhere' is no checkpoint"),
        (["--num_train_epochs", "0"], "num_train_epochs 0.0 must be above 0"),
        (["--per_device_train_batch_size", "0"], "per_device_train_batch_size 0 must be at least 1"),
        (["--learning_rate", "nan"], "learning_rate nan must be above 0"),
        (["--gradient_accumulation_steps", "0"], "gradient_accumulation_steps 0"),
        (["--metric_for_best_model", "acuracy"], "'acuracy' is not measured: did you mean accuracy?"),
        (["--metric_for_best_model", "f1"], "'f1' is not measured: use loss, accuracy, top5_accuracy"),
        (["--method", "freeze"], "freeze' keeps the zeros of a model, and this one has none"),
        (["--optim_args", "momentum"], "optim_args 'momentum' must be pairs"),
        (["--report_to", "nobody"], "nobody"),
        (["--dataset_name", "x", "--model_name_or_path", "y", "--streaming"], "streaming needs max_steps"),
        (
            ["--mask_momentum", "--optim", "sgd", "--optim_args", "momentum=0"],
            "mask_momentum True has no effect on SGD without momentum",
        ),
        (["--mask_momentum", "--optim", "adagrad"], "does not know where Adagrad keeps its momentum"),
        (["--lr_scheduler_type", "cosine"], "lr_scheduler_type 'cosine'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        prune(*arguments, "--output_dir", str(tmp_path / "out"))
    out, err = capfd.readouterr()
    assert exit_.value.code == 2
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert words in lines[0]
    assert "Traceback" not in out + err
    assert not list(tmp_path.glob("out/checkpoint-*"))


def test_nan_weights_are_named(tmp_path):
    code, _, err = call(*SHORT, "--output_dir", tmp_path / "good")
    assert code == 0, err
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "good")
    with torch.no_grad():
        model.timm_model.fc.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "bad")
    arguments = ["--model_name_or_path", tmp_path / "bad", "--dataset_name", "digits", "--max_steps", 20]
    code, _, err = call(*arguments, "--output_dir", tmp_path / "out")
    assert code == 2
    assert "error: timm_model.fc.weight has 1 NaN or infinite weights of 640" in err
    assert "Traceback" not in err


@pytest.fixture
def image_folder(tmp_path):
    """Large images (80x64) of three classes, told apart by their colour."""
    generator = np.random.default_rng(0)
    for split, n in (("train", 12), ("validation", 6)):
        for c, name in enumerate(("red", "green", "blue")):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for i in range(n):
                pixels = generator.integers(0, 100, (64, 80, 3), dtype=np.uint8)
                pixels[..., c] += 150
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path / "images"


@pytest.fixture
def resnet_folder(tmp_path):
    """A tiny ResNet of transformers, for other classes and without a processor."""
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5)
    ResNetForImageClassification(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("streaming", [False, True])
def test_any_folder_of_images_with_any_folder_of_a_model(image_folder, resnet_folder, streaming, tmp_path, capsys):
    arguments = [
        "--model_name_or_path",
        resnet_folder,
        "--dataset_name",
        image_folder,
        "--output_dir",
        tmp_path / "out",
    ]
    arguments += ["--max_steps", 12, "--cycles", 2, "--target_sparsity", 0.8, "--per_device_train_batch_size", 6]
    arguments += ["--share", "uniform", "--delta_t", 2, *(["--streaming"] if streaming else [])]
    assert prune(*arguments) == 0
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "out")
    assert list(model.config.id2label.values()) == ["blue", "green", "red"]
    for layer in load_report(tmp_path / "out").layers:
        assert int((model.get_parameter(layer.name) == 0).sum()) == round(0.8 * layer.weights)
    assert AutoImageProcessor.from_pretrained(tmp_path / "out").size == {"height": 224, "width": 224}
    assert "cycle 2" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["include: 3", "max_steps: 10.5", "method: [a]", "seed: {a: 1}"])
def test_wrong_types_in_a_file_are_one_line(line, tmp_path, capsys):
    file = tmp_path / "settings.yaml"
    file.write_text(line)
    with pytest.raises(SystemExit) as exit_:
        prune(str(file), "--plan")
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_no_target_trains_densely(tmp_path, capsys):
    assert prune("--target_sparsity", "0", "--max_steps", "5", "--output_dir", str(tmp_path / "out")) == 0
    out = capsys.readouterr().out
    assert "nothing is pruned" in out
    assert "The dense model, with an accuracy of" in out


def test_a_sparse_model_can_be_fine_tuned_with_its_zeros(tmp_path, capsys):
    assert prune(*SHORT, "--output_dir", str(tmp_path / "sparse")) == 0
    arguments = ["--model_name_or_path", str(tmp_path / "sparse"), "--dataset_name", "digits", "--max_steps", "8"]
    assert prune(*arguments, "--method", "freeze", "--output_dir", str(tmp_path / "tuned")) == 0
    report = load_report(tmp_path / "tuned")
    assert report.start_sparsity == pytest.approx(0.98, abs=1e-3)
    assert [layer.kept for layer in report.layers] == [layer.kept for layer in load_report(tmp_path / "sparse").layers]
    assert "start" in capsys.readouterr().out.rsplit("-------", 1)[-1]


def test_help_explains_in_the_papers_words():
    code, out, _ = run(PYTHON, "--help")
    assert code == 0
    text = " ".join(out.split())
    for symbol in ("s_t in the paper", "k in the paper", "s_init in the paper", "Delta t in the paper"):
        assert symbol in text
    assert text.index("--target_sparsity") < text.index("--num_train_epochs")


@pytest.mark.parametrize("option", ["--help", "--help-all"])
def test_help_tells_which_defaults_a_recommended_recipe_replaces(option, capsys):
    with pytest.raises(SystemExit):
        prune(option)
    told, rest = " ".join(capsys.readouterr().out.split()).split(" -h, --help ", 1)
    assert "without --preset, what you leave open is set by a recommended recipe; --plan prints it with its" in told
    of_argument = dict(re.findall(r"--([a-z_]+) (?:[A-Z]+|\{\S+\}|VALUE) (.*?)(?= --[a-z])", rest))
    values = {"method": "cyclical", "cycles": "5", "delta_t": "100", "share": "uniform", "learning_rate": "0.01"}
    values |= {"num_train_epochs": "100.0", "optim": "sgd", "per_device_train_batch_size": "256"}
    values |= {"lr_shape": "drop, the paper's,"} if option == "--help-all" else {}
    for name, value in values.items():
        assert f"{value} without the recipe" in of_argument[name], name
        assert "default" not in of_argument[name]
        assert f"{value} if not given" not in of_argument[name]
    assert "(default: pruned)" in of_argument["output_dir"]


def test_a_file_may_end_in_a_list(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("max_steps: 20\nexclude:\n- '*.fc'\n")
    code, out, err = call(file, "--seed", 3, "--plan")
    assert code == 0, err
    assert "fc.weight" not in out


def test_a_json_file_works_and_an_unknown_key_in_it_is_named(tmp_path):
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"target_sparcity": 0.5}))
    code, _, err = call(file)
    assert code == 2
    assert "'target_sparcity'" in err
    assert "did you mean target_sparsity?" in err
