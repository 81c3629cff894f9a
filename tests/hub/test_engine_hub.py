"""Compiled models by their Hub id."""

import json

from PIL import Image
from support.local_hub import run_client
from support.tiny_models import prune, save_family


def compile_and_command(folder, image):
    import torch

    import hf_cyclical
    from hf_cyclical.cli import main

    pixels = torch.randn(2, 3, 28, 28)
    ours = hf_cyclical.compile("user/model", revision="main")(pixels).logits
    expected = hf_cyclical.load(folder)(pixels).logits
    assert float((ours - expected).abs().max() / expected.abs().max()) < 1e-4
    assert main(["speed", "user/model", "--batches", "1", "--rounds", "1", "--json", "speed.json"]) == 0
    assert main(["predict", "user/model", image, "--top", "1"]) == 0


def test_a_hub_id_in_place_of_a_folder(hub, tmp_path):
    folder = tmp_path / "model"
    model = save_family("ResNet", folder)
    prune(model, 0.9)
    model.save_pretrained(folder)
    Image.new("RGB", (40, 40)).save(tmp_path / "image.png")
    hub.put("user/model", {file.name: file.read_bytes() for file in folder.iterdir()})
    code, out, err = run_client(hub, compile_and_command, folder, tmp_path / "image.png", cwd=tmp_path)
    assert code == 0, err
    assert "image.png: " in out
    assert json.loads((tmp_path / "speed.json").read_text())["shape"] == [3, 28, 28]
