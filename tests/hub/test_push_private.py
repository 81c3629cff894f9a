"""What others wrote into the files of a run does not get out: passwords, paths in headers, text in images."""

import io
import json
import zlib

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.pushing import copy_run, finished_run
from support.stamped import edit_json

from hf_cyclical import PruningError
from hf_cyclical.formats import hide_in_settings, without_text
from hf_cyclical.hub import build_folder, verify

SECRET = "hunter2"  # noqa: S105 - made up
FIGURE, WEIGHTS = "pruning_run.png", "model.safetensors"


@pytest.fixture
def run(tmp_path):
    return copy_run(finished_run("transformers"), tmp_path / "run")


def built(run, tmp_path):
    """The folders of both branches; nothing in them holds the secret, plainly or compressed."""
    folders = build_folder(run, tmp_path / "built", repo_id="user/model", packed=True)
    for folder in folders.values():
        assert not any(SECRET.encode() in file.read_bytes() for file in folder.iterdir())
        assert verify(folder).ok
    return folders["main"]


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://bob:hunter2@host/data", "https://host/data"),
        ("https://bob:hunt@hunter2@host/data", "https://host/data"),
        ("see s3://key:hunter2@bucket/x and git+ssh://hunter2@host/y", "see s3://bucket/x and git+ssh://host/y"),
        ("https://host/x?a=1&access_token=hunter2&b=2", "https://host/x?a=1&access_token=...&b=2"),
        ("https://host/x?X-Amz-Signature=hunter2#top", "https://host/x?X-Amz-Signature=...#top"),
        ("https://host/x?sig=hunter2", "https://host/x?sig=..."),
        ("https://host/x#access_token=hunter2", "https://host/x#access_token=..."),
        ("https://host/x?pwd=hunter2&pass=hunter2", "https://host/x?pwd=...&pass=..."),
        ("https://host/x?jwt=hunter2;session=hunter2", "https://host/x?jwt=...;session=..."),
        ("https://host/x?url=https%3A%2F%2Fbob%3Ahunter2%40inner", "https://host/x?url=https%3A%2F%2Finner"),
        (r"https:\/\/bob:hunter2@host", r"https:\/\/host"),
        ("Authorization: Bearer hunter2hunter2", "Authorization: ..."),
        ("header Bearer hunter2hunter2", "header Bearer ..."),
        ("bob:hunter2@host", "host"),
        ("https://bob:hunt'hunter2@host/x", "https://host/x"),
        ('https://bob:hunt"hunter2@host/x', "https://host/x"),
        ("https://bob:hunt/hunter2@host/x", "https://host/x"),
    ],
)
def test_addresses_in_settings(run, tmp_path, address, shown):
    settings = {"source": address, "deep": [{"x": [address]}], "id2label": {"0": address, "1": "b", "2": "c"}}
    assert hide_in_settings(settings) == {
        "source": shown, "deep": [{"x": [shown]}], "id2label": {"0": shown, "1": "b", "2": "c"}
    }  # fmt: skip
    assert hide_in_settings(hide_in_settings(settings)) == hide_in_settings(settings)
    edit_json(run / "config.json", lambda config: config.update(settings, label2id=None))
    edit_json(run / "preprocessor_config.json", lambda config: config.update(origin=address))
    config = json.loads((built(run, tmp_path) / "config.json").read_text())
    assert config["source"] == config["deep"][0]["x"][0] == shown


@pytest.mark.parametrize(
    "text",
    [
        "Bearer of rings",
        "at 12:30 @noon",
        "a:b",
        "https://host:80/x",
        "https://host/x?page=3&keyboard",
        "a@b",
        "user@host.org",
        "/m/01yrx?x",
        "https://host/@user/x",
        "https://host:8080/@user/x",
        '{"a":"https://host","b":"user@host.org"}',
        "key=value",
    ],
)
def test_other_text_stays(text):
    settings = {"note": f"see {text}" if text[0] != "/" else "x", "id2label": {"0": text}}
    assert hide_in_settings(settings) == settings


@pytest.mark.parametrize(
    "key", ["/home/hunter2/x", r"C:\Users\hunter2\x", "file:///home/hunter2/x", "//bob:hunter2@host/x"]
)
def test_names_of_settings(run, tmp_path, key):
    settings = {key: 1, "deep": [{key: {key: 2}}]}
    edit_json(run / "config.json", lambda config: config.update(settings))
    edit_json(run / "preprocessor_config.json", lambda config: config.update(settings))
    built(run, tmp_path)


def test_settings_that_are_called_secrets(run, tmp_path):
    settings = {"api_key": "hunter2", "wandb_api_key": "hunter2", "deep": [{"password": "hunter2"}]}
    others = {"image_token": "<image>", "pad_token_id": 3, "key": "value", "tokens": "a b"}
    edit_json(run / "config.json", lambda config: config.update(settings | others))
    config = json.loads((built(run, tmp_path) / "config.json").read_text())
    assert config["api_key"] == config["deep"][0]["password"] == "..."
    assert config | others == config


@pytest.mark.parametrize(
    "metadata",
    [
        {"source": "/home/hunter2/model"},
        {"about": json.dumps({"made": {"in": ["/home/hunter2/runs/1"]}, "n": 3})},
        {"/home/hunter2/x": "1"},
        {"about": json.dumps({"n": 3, "inner": json.dumps({"in": "/home/hunter2/x"})})},
        {"url": "https://bob:hunter2@host/x"},
    ],
)
def test_headers_of_weights(run, tmp_path, metadata):
    save_file(load_file(run / WEIGHTS), run / WEIGHTS, {"format": "pt", "note": "mine"} | metadata)
    with safe_open(built(run, tmp_path) / WEIGHTS, "pt") as file:
        kept = file.metadata()
    assert (kept["format"], kept["note"]) == ("pt", "mine")
    assert json.loads(kept.get("about", '{"n": 3}'))["n"] == 3


def image(**text):
    info = PngInfo()
    for key, value in text.items():
        info.add_text(key, value, zip=key == "zipped")
    file = io.BytesIO()
    Image.new("RGB", (40, 30), (1, 2, 3)).save(file, "PNG", pnginfo=info, exif=b"Exif\0\0 hunter2")
    return file.getvalue() + b"hunter2 behind the end"


@pytest.mark.parametrize("key", ["Source", "zipped"])
def test_text_in_images(run, tmp_path, key):
    (run / FIGURE).write_bytes(image(**{key: "/home/hunter2/figure.svg " * 20}))
    pushed = (built(run, tmp_path) / FIGURE).read_bytes()
    with Image.open(io.BytesIO(pushed)) as opened:
        opened.load()
        assert (opened.size, opened.getpixel((5, 5)), opened.info, len(opened.getexif())) == (
            (40, 30),
            (1, 2, 3),
            {},
            0,
        )
    assert zlib.crc32(pushed[-8:-4]) == int.from_bytes(pushed[-4:], "big")


@pytest.mark.parametrize("data", [b"", b"<svg/>", image()[:60], image()[:8], image()[:-40]])
def test_images_that_are_none(run, tmp_path, data):
    (run / FIGURE).write_bytes(data)
    with pytest.raises(PruningError, match=r"pruning_run.png is (no PNG image|damaged): draw it again"):
        build_folder(run, tmp_path / "built", repo_id="user/model")


def test_a_picture_stays_as_it_is():
    plain = without_text(image(), "x")
    assert without_text(plain, "x") == plain


def test_settings_that_lead_to_other_weights_or_code(run, tmp_path):
    settings = {
        "auto_map": {"AutoModelForImageClassification": "x--model.Net"}, "transformers_weights": "x.safetensors",
        "configuration_files": ["config.4.0.0.json"], "fusion_config": {"patch_embeddings": True},
    }  # fmt: skip
    edit_json(run / "config.json", lambda config: config.update(settings))
    edit_json(run / "preprocessor_config.json", lambda config: config.update(auto_map={"AutoImageProcessor": "x.Y"}))
    folder = built(run, tmp_path)
    for name in ("config.json", "preprocessor_config.json"):
        assert not settings.keys() & json.loads((folder / name).read_text()).keys()
