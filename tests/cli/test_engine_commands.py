"""The commands speed, predict and export on a small saved model."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from support.tiny_models import LABELS, prune, save_pruned

from hf_cyclical import PruningError, engine, load
from hf_cyclical.cli import export, predict, speed
from hf_cyclical.engine import OURS, Speed, Timing, processor_name
from hf_cyclical.hub import read_speed


@pytest.fixture
def folder(tmp_path):
    return save_pruned("ResNet", tmp_path / "model")


def test_speed_prints_a_table_and_writes_json(folder, tmp_path, capsys):
    assert (
        speed.main([str(folder), "--batches", "1", "2", "--rounds", "2", "--json", str(tmp_path / "speed.json")]) == 0
    )
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "speed.json").read_text())
    assert {(t["engine"], t["batch"]) for t in found["timings"]} >= {(OURS, 1), (OURS, 2), ("torch", 1), ("torch", 2)}
    assert all(t["milliseconds"] > 0 for t in found["timings"])
    assert found["shape"] == [3, 28, 28]
    layers = [row["layer"] for row in found["layers"]]
    assert len(layers) == sum(isinstance(m, (torch.nn.Conv2d, torch.nn.Linear)) for m in load(folder).modules())
    assert all(layer in printed for layer in layers)


def test_speed_is_recorded_for_the_card(folder, capsys):
    assert speed.main([str(folder), "--batches", "1", "--rounds", "1", "--record"]) == 0
    found = read_speed(folder)
    assert (found["processor"], found["threads"], found["shape"]) == (processor_name(), 1, [3, 28, 28])
    assert {engine for engine, batch, milliseconds in found["timings"] if milliseconds > 0} >= {OURS, "torch"}
    with pytest.raises(SystemExit):
        speed.main(["user/name", "--record"])
    assert "error: --record writes into the folder of a model, and 'user/name' is none" in capsys.readouterr().err


def test_predict_names_the_classes_of_an_image(folder, tmp_path, capsys):
    pixels = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    assert predict.main([str(folder), str(tmp_path / "image.png"), "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert {line.split()[1] for line in lines} < set(LABELS)


def test_predict_runs_a_dense_model_in_plain_torch_and_says_so(tmp_path, capsys):
    model = timm.create_model("cifar_resnet8", num_classes=3)
    timm.models.save_for_hf(model, tmp_path / "model", model_config={"label_names": LABELS}, safe_serialization=True)
    Image.new("RGB", (40, 40)).save(tmp_path / "image.png")
    assert predict.main([str(tmp_path / "model"), str(tmp_path / "image.png"), "--top", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.split()[1] in LABELS
    assert "In plain torch: " in err


def test_predict_without_the_engine_says_the_same_classes(folder, tmp_path, capsys, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    assert predict.main([str(folder), str(tmp_path / "image.png")]) == 0
    with_engine, err = capsys.readouterr()
    assert "plain torch" not in err

    def without_llvmlite(model):
        raise PruningError("the engine needs llvmlite")

    monkeypatch.setattr(engine, "compile_model", without_llvmlite)
    assert predict.main([str(folder), str(tmp_path / "image.png")]) == 0
    out, err = capsys.readouterr()
    assert out == with_engine
    assert "In plain torch: the engine needs llvmlite" in err


def test_predict_with_classes_of_the_same_name(folder, tmp_path, capsys):
    """As ImageNet has two kinds of cranes."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {str(i): "crane" for i in range(3)}, "label2id": None}
    (folder / "config.json").write_text(json.dumps(config))
    Image.new("RGB", (40, 40)).save(tmp_path / "image.png")
    assert predict.main([str(folder), str(tmp_path / "image.png")]) == 0
    assert capsys.readouterr().out.count(": crane ") == 3


def test_predict_without_the_names_of_all_classes(tmp_path, capsys):
    model = timm.create_model("cifar_resnet8", num_classes=3)
    prune(model, 0.9)
    timm.models.save_for_hf(
        model, tmp_path / "model", model_config={"label_names": ["cat", "dog"]}, safe_serialization=True
    )
    Image.new("RGB", (40, 40)).save(tmp_path / "image.png")
    assert predict.main([str(tmp_path / "model"), str(tmp_path / "image.png")]) == 0
    assert {line.split()[1] for line in capsys.readouterr().out.splitlines()} == {"0", "1", "2"}


def test_predict_prints_no_control_characters(folder, tmp_path, capsys):
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {str(i): f"a\x1b[2J{i}" for i in range(3)}, "label2id": None}
    (folder / "config.json").write_text(json.dumps(config))
    Image.new("RGB", (40, 40)).save(tmp_path / "image.png")
    assert predict.main([str(folder), str(tmp_path / "image.png")]) == 0
    assert "a?[2J" in (printed := capsys.readouterr().out)
    assert printed.replace("\n", "").isprintable()


def test_an_export_with_other_outputs_leaves_no_file(folder, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("hf_cyclical.engine.onnx_export.ALLOWED_ERROR", -1.0)
    with pytest.raises(SystemExit):
        export.main([str(folder), "--output", str(tmp_path / "new.onnx")])
    assert "the export is not usable" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.onnx*")) + list(tmp_path.glob(".*"))


def test_export_writes_a_file_that_onnx_runtime_runs(folder, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    assert export.main([str(folder), "--to", "onnx", "--output", str(file)]) == 0
    model, pixels = load(folder), torch.randn(5, 3, 28, 28)
    zeros = sum(int((p == 0).sum()) for n, p in model.named_parameters() if p.dim() == 4)
    said = int(capsys.readouterr().out.split(" zeros")[0].split()[-1].replace(",", ""))
    assert said >= zeros
    session = onnxruntime.InferenceSession(str(file))
    found = torch.from_numpy(session.run(None, {"pixel_values": pixels.numpy()})[0])
    torch.testing.assert_close(found, model(pixels).logits.detach(), rtol=0, atol=1e-4)
    onnx = pytest.importorskip("onnx")
    assert "BatchNormalization" not in {node.op_type for node in onnx.load(file).graph.node}


@pytest.mark.parametrize(
    ("command", "args", "message"),
    [
        (speed, ["nothing"], "neither a folder here nor a Hub id"),
        (speed, ["FOLDER", "--batches", "0"], "must be at least 1"),
        (predict, ["FOLDER", "missing.png"], "missing.png cannot be read as an image"),
        (predict, ["FOLDER", "FOLDER/config.json"], "cannot be read as an image"),
        (export, ["FOLDER", "--output", "FOLDER/config.json"], "exists: choose another --output"),
        (export, ["FOLDER", "--to", "tflite"], "invalid choice"),
        (export, ["FOLDER", "--output", "FOLDER/no/model.onnx"], "for --output: make it first"),
        (speed, ["FOLDER", "--json", "FOLDER/no/speed.json"], "for --json: make it first"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder, capsys, command, args, message):
    with pytest.raises(SystemExit) as ended:
        command.main([arg.replace("FOLDER", str(folder)) for arg in args])
    error = capsys.readouterr().err.strip()
    assert ended.value.code == 2
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"shortest_edge": 60000}, "asks for images of 60000 pixels, not of 1 to 4096"),
        ({"shortest_edge": -3}, "asks for images of -3 pixels"),
        ({"height": 30, "width": 30}, "cannot be used, save it again"),
    ],
)
@pytest.mark.parametrize("command", [predict, speed])
def test_a_processor_that_cannot_be_right(folder, tmp_path, capsys, command, size, message):
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"size": size}))
    Image.new("RGB", (40, 40)).save(tmp_path / "image.png")
    with pytest.raises(SystemExit):
        command.main([str(folder)] + [str(tmp_path / "image.png")] * (command is predict))
    assert message in (error := capsys.readouterr().err.splitlines()[-1])
    assert error.startswith("error: ")


def test_the_sentence_for_a_card_has_the_figures_and_the_processor():
    timings = (Timing("torch", 1, 3.0), Timing(OURS, 1, 0.5), Timing("ONNX Runtime", 1, 2.0), Timing(OURS, 32, 9.0))
    measured = Speed("Some CPU", 1, (3, 32, 32), timings, (), ())
    assert measured.ratio(1, "torch") == 6
    assert measured.ratio(32, "torch") is None
    assert measured.sentence() == (
        "With `hf_cyclical.compile` this model takes 0.5 ms for a batch of 1 (3 x 32 x 32 pixels, 1 thread, Some CPU): "
        "6.0 times as fast as torch, 4.0 times as fast as ONNX Runtime, which run it dense."
    )


@pytest.mark.parametrize("size", ["0", "-5"])
def test_a_size_that_no_image_has_is_refused(tmp_path, capsys, size):
    with pytest.raises(SystemExit):
        export.main([str(tmp_path), "--output", str(tmp_path / "out.onnx"), "--size", size])
    assert "error: --size must be at least 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        speed.main([str(tmp_path), "--size", size])
    assert "error: --batches, --threads, --rounds and --size must be at least 1" in capsys.readouterr().err
