import json
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.tiny_hub import COMMIT, serve_models
from support.tiny_models import FAMILIES, LABELS, TIMM, images, logits, prune, same, save_family, save_timm, zeros
from transformers import AutoImageProcessor, AutoModelForImageClassification, TimmWrapperConfig

from hf_cyclical import PruningError
from hf_cyclical.models import ImageSettings, load_image_model, make_portable


@pytest.mark.parametrize("name", TIMM)
def test_a_pruned_timm_model_loads_in_both_libraries(name, tmp_path):
    original = save_timm(name, tmp_path / "base")
    loaded = load_image_model(str(tmp_path / "base"), LABELS)
    pixels = images(loaded.settings.size)
    assert same(logits(loaded.model, pixels), logits(original, pixels))

    pruned = prune(loaded.model)
    loaded.model.config.pruning = {"sparsity": 0.5}
    loaded.model.save_pretrained(tmp_path / "pruned")
    make_portable(tmp_path / "pruned")
    config = json.loads((tmp_path / "pruned" / "config.json").read_text())
    assert list(config)[:4] == ["architecture", "num_classes", "num_features", "label_names"]
    assert config["pretrained_cfg"]["num_classes"] == config["num_classes"] == 3
    assert config["num_features"] == original.num_features
    assert config["pruning"] == {"sparsity": 0.5}
    assert not {"model_type", "architectures", "transformers_version", "problem_type"} & set(config)
    with safe_open(tmp_path / "pruned" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(original.state_dict())

    in_timm = timm.create_model(f"local-dir:{tmp_path / 'pruned'}", pretrained=True)
    in_transformers = AutoModelForImageClassification.from_pretrained(tmp_path / "pruned")
    for again in (in_timm, in_transformers, load_image_model(str(tmp_path / "pruned"), LABELS).model):
        assert same(logits(again, pixels), logits(loaded.model, pixels))
    assert zeros(in_transformers, pruned) == pruned
    assert zeros(in_timm, [key.removeprefix("timm_model.") for key in pruned]) == {
        key.removeprefix("timm_model."): n for key, n in pruned.items()
    }
    assert in_transformers.config.id2label == dict(enumerate(LABELS))
    processor = AutoImageProcessor.from_pretrained(tmp_path / "pruned")
    assert processor(Image.new("RGB", (50, 40)))["pixel_values"].shape == (1, 3, *[loaded.settings.size] * 2)


def test_a_folder_that_says_its_classes_twice(tmp_path):
    """As timm 1.0.31 writes it, which transformers' wrapper cannot read."""
    original = save_timm("test_vit", tmp_path)
    edit_config(tmp_path, model_args={"num_classes": 3, "img_size": [160, 160], "class_token": True})
    with pytest.raises(TypeError, match="multiple values for keyword argument 'num_classes'"):
        AutoModelForImageClassification.from_pretrained(tmp_path)
    assert same(logits(load_image_model(tmp_path, LABELS).model, images(160)), logits(original, images(160)))
    small = load_image_model(tmp_path, [*LABELS, "more"], from_scratch=True, image_size=64)
    assert logits(small.model, images(64)).shape == (2, 4)
    make_portable(tmp_path)
    in_timm = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    for again in (in_timm, AutoModelForImageClassification.from_pretrained(tmp_path)):
        assert same(logits(again, images(160)), logits(original, images(160)))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_args"] == {"img_size": [160, 160], "class_token": True}


@pytest.mark.parametrize("with_cfg", [True, False])
def test_a_folder_of_the_wrapper_becomes_one_of_timm(with_cfg, tmp_path):
    cfg = {"pretrained_cfg": timm.get_pretrained_cfg("test_resnet").to_dict()} if with_cfg else {}
    wrapper = AutoModelForImageClassification.from_config(
        TimmWrapperConfig(architecture="test_resnet", id2label=dict(enumerate(LABELS)), **cfg)
    )
    wrapper.save_pretrained(tmp_path)
    assert "timm_model.conv1.0.weight" in load_file(tmp_path / "model.safetensors")
    loaded = load_image_model(str(tmp_path), LABELS)
    assert loaded.settings == ImageSettings(160, (0.5,) * 3, (0.5,) * 3, "bilinear")
    make_portable(tmp_path)
    native = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert same(logits(native, images(64)), logits(wrapper, images(64)))
    assert {"hf_hub_id", "tag", "url"}.isdisjoint(native.pretrained_cfg)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_a_crash_while_making_portable_leaves_a_usable_folder(tmp_path, monkeypatch):
    loaded = load_image_model("cifar_resnet8", LABELS)
    loaded.model.save_pretrained(tmp_path)
    expected = logits(loaded.model, images(32))

    for crash in (1, 2):  # before the weights are replaced, then before the config is
        turns = iter([False] * (crash - 1) + [True])

        def replace(file, target, turns=turns):
            if next(turns):
                raise KeyboardInterrupt
            return file.rename(target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            with pytest.raises(KeyboardInterrupt):
                make_portable(tmp_path)
        assert same(logits(AutoModelForImageClassification.from_pretrained(tmp_path), images(32)), expected)
        assert same(logits(load_image_model(str(tmp_path), LABELS).model, images(32)), expected)
    make_portable(tmp_path)
    assert same(logits(timm.create_model(f"local-dir:{tmp_path}", pretrained=True), images(32)), expected)


def test_more_in_the_header_of_the_weights_is_kept(tmp_path):
    load_image_model("cifar_resnet8", LABELS).model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt", "mask": "abc"})
    make_portable(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "mask": "abc"}
    weights = (tmp_path / "model.safetensors").read_bytes()
    make_portable(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == weights


def test_a_model_made_for_another_image_size_keeps_it(tmp_path):
    loaded = load_image_model("test_vit", LABELS, from_scratch=True, image_size=64)
    loaded.model.save_pretrained(tmp_path)
    make_portable(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_args"] == {"img_size": 64}
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert same(logits(again, images(64)), logits(loaded.model, images(64)))
    assert load_image_model(str(tmp_path), LABELS, image_size=32).settings.size == 64  # trained weights keep theirs


def test_make_portable_refuses_what_timm_cannot_read(tmp_path):
    with pytest.raises(PruningError, match=r"has no config\.json"):
        make_portable(tmp_path)
    model = load_image_model("cifar_resnet8", LABELS).model
    model.save_pretrained(tmp_path, max_shard_size="200KB")
    with pytest.raises(PruningError, match="in several files"):
        make_portable(tmp_path)


def edit_config(folder, **fields):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def drop_tensor(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["vit.layernorm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def cut_weights(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def to_pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


DAMAGE = {
    "has no config.json": lambda f: (f / "config.json").unlink(),
    "config.json of .* is not valid JSON": lambda f: (f / "config.json").write_text('{"model_type": '),
    "holds no settings but a list": lambda f: (f / "config.json").write_text("[]"),
    "config.json of .* cannot be used": lambda f: edit_config(f, hidden_size="eight"),
    "has no model.safetensors, the only kind": lambda f: (f / "model.safetensors").unlink(),
    "has no model.safetensors but 'pytorch_model.bin', which is not read": to_pickle,
    "weights of .* are damaged, download or save them again": cut_weights,
    "do not fit its config: 1 tensors .* vit.layernorm.weight": drop_tensor,
    "do not fit its config: .* vit.embeddings.position_embeddings": lambda f: edit_config(f, image_size=64),
    "cannot be loaded": lambda f: edit_config(f, hidden_act="nonsense"),
    "is of type 'bert', no image classifier": lambda f: edit_config(f, model_type="bert"),
    "is of type 'nonsense', which transformers": lambda f: edit_config(f, model_type="nonsense"),
    "needs code of its own, which is never run": lambda f: edit_config(
        f, model_type="mine", auto_map={"AutoConfig": "code.Config", "AutoModelForImageClassification": "code.Model"}
    ),
    "has no 'resnet18x' of .*: it has resnet18": lambda f: edit_config(
        f, model_type="timm_wrapper", architecture="resnet18x", num_classes=3
    ),
    "image processor of .* cannot be read": lambda f: (f / "preprocessor_config.json").write_text("{"),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_a_bad_folder_is_refused_in_one_line(message, tmp_path):
    save_family("ViT", tmp_path)
    (tmp_path / "code.py").write_text("raise SystemExit('code of the folder was run')")
    DAMAGE[message](tmp_path)
    with pytest.raises(PruningError, match=message) as caught:
        load_image_model(str(tmp_path), LABELS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18x", "timm has resnet18,"),
        ("cifar_resnet", "timm has cifar_resnet8, cifar_resnet20, cifar_resnet56"),
        ("zzz", "timm has resnet18, cifar_resnet20"),
        ("resnet18.bad", "no weights 'resnet18.bad': use resnet18, resnet18.a1_in1k"),
        ("./runs/nothing", "is a path without a folder"),
        ("/runs/nothing", "is a path without a folder"),
        ("hf-hub:no name", "neither a folder here nor on the Hub"),
    ],
)
def test_an_unknown_name_is_refused_in_one_line(name, message):
    with pytest.raises(PruningError, match=message) as caught:
        load_image_model(name, LABELS)
    assert "\n" not in str(caught.value)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub with a model of each library, a gated one, and one with pickled weights; an empty cache."""
    save_family("ViT", tmp_path / "vit")
    save_timm("test_resnet", tmp_path / "resnet")
    save_family("ViT", tmp_path / "pickled")
    to_pickle(tmp_path / "pickled")
    (tmp_path / "vit" / "pytorch_model.bin").write_bytes(b"never to be asked for")
    models = {"org/vit": tmp_path / "vit", "timm/test_resnet.r160_in1k": tmp_path / "resnet"}
    models |= {"org/pickled": tmp_path / "pickled", "org/gated": "GatedRepo"}
    with serve_models(models) as (url, asked):
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield tmp_path, asked


def test_models_of_the_hub(hub, monkeypatch):
    folder, asked = hub
    scratch = load_image_model("org/vit", LABELS, from_scratch=True)
    assert sorted(asked) == ["config.json", "preprocessor_config.json"]
    asked.clear()
    loaded = load_image_model("org/vit", LABELS)
    assert asked == ["model.safetensors"]
    assert loaded.settings == scratch.settings == FAMILIES["ViT"][2]
    assert same(
        logits(loaded.model, images(32)), logits(load_image_model(str(folder / "vit"), LABELS).model, images(32))
    )
    assert loaded.model.config.name_or_path == "org/vit"
    assert (loaded.base_model, loaded.revision) == ("org/vit", COMMIT)
    assert (scratch.base_model, scratch.revision) == (None, None)
    names = ("timm/test_resnet.r160_in1k", "test_resnet", "test_resnet.r160_in1k", "hf-hub:timm/test_resnet.r160_in1k")
    for name in names:
        by_name = load_image_model(name, LABELS).model
        assert by_name.config.name_or_path == "timm/test_resnet.r160_in1k"
        in_folder = load_image_model(str(folder / "resnet"), LABELS).model
        assert same(logits(by_name, images(64)), logits(in_folder, images(64)))
    asked.clear()
    load_image_model("test_resnet", LABELS, from_scratch=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    load_image_model("org/vit", LABELS)
    assert not asked


@pytest.mark.parametrize(
    ("name", "offline", "message"),
    [
        ("org/nothing", False, "is neither a folder here nor on the Hub: check the spelling"),
        ("org/gated", False, "is gated: ask for access at https://huggingface.co/org/gated"),
        ("org/pickled", False, r"has no model.safetensors, the only kind of weights that is read"),
        ("org/vit", True, "is not in the cache and the Hub cannot be reached"),
        ("resnet18", True, "'timm/resnet18.a1_in1k' is not in the cache and the Hub cannot be reached"),
    ],
)
def test_what_the_hub_does_not_give_is_said_in_one_line(name, offline, message, hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(PruningError, match=message) as caught:
        load_image_model(name, LABELS)
    assert "\n" not in str(caught.value)


def test_a_hub_out_of_reach_is_said_in_one_line(hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PruningError, match="the Hub cannot be reached: go online once") as caught:
        load_image_model("org/vit", LABELS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"architecture": "resnet18", "num_classes": 10}, "no proper label_names"),
        ({"num_classes": 10, "label_names": []}, "no proper architecture"),
        ({"architecture": "resnet18", "num_classes": 2, "label_names": [], "pretrained_cfg": []}, "pretrained_cfg"),
    ],
)
def test_a_config_that_is_not_whole_is_refused_in_one_line(config, words, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "timm_wrapper"} | config))
    save_file({"timm_model.x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(PruningError, match=words):
        make_portable(tmp_path)
