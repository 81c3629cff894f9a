"""Patterns through the Trainer, the settings, the command line, the card and the record."""

import dataclasses
import json

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from support.card_reading import assert_whole, front
from support.processes import on_processes
from support.sharded import ShardedTrainer
from support.stamped import edit_json, save_pruned
from support.tiny import TinyNet, build_trainer, same_weights

from hf_cyclical import PruningConfig, PruningError
from hf_cyclical.cli import parse_arguments
from hf_cyclical.core import NofM
from hf_cyclical.hub import render_card, stamp, verify
from hf_cyclical.training import describe_plan

CYCLICAL = {"cycles": 2, "delta_t": 3}
BOTH = [CYCLICAL | {"pattern": "2:4"}, CYCLICAL | {"pattern": "4x1", "target_sparsity": 0.75}]
SAVES = {"save_strategy": "steps", "save_steps": 5}


# Settings ------------------------------------------------------------------------------------------------------------


def test_n_of_m_fixes_the_target():
    config = PruningConfig(pattern="2:4")
    assert config.resolved("target_sparsity") == 0.5
    assert PruningConfig(pattern="1:4").recipe(100).s_t == 0.75
    assert PruningConfig(**config.to_dict()).to_dict() == config.to_dict()
    assert config.to_dict()["pattern"] == "2:4"
    assert PruningConfig(pattern="4x1").resolved("target_sparsity") == 0.9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"pattern": "2:4", "target_sparsity": 0.9},
            "target_sparsity 0.9 contradicts pattern 2:4, whose sparsity is 0.5: leave it out",
        ),
        (
            {"pattern": "2:4", "share": "lamp"},
            "share 'lamp' has no meaning for pattern 2:4, which prunes every layer alike: use uniform, or leave it out",
        ),
        (
            {"pattern": "2:4", "layer_sparsity": ["fc=0.1"]},
            "layer_sparsity ['fc=0.1'] has no meaning for pattern 2:4, which prunes every layer alike: leave it out, "
            "or exclude layers that stay dense",
        ),
        (
            {"pattern": "1:4", "row_floor": 2},
            "row_floor 2 is more than pattern 1:4 keeps of each group: use 1 at most, or leave it out",
        ),
        ({"pattern": 124}, "pattern 124 must be text: write '2:4' or '4x1'"),
        (
            {"pattern": "2-4"},
            "pattern '2-4' is neither n:m nor a block: write 2:4 or 4x1 (in a YAML file in quotes: '2:4')",
        ),
        (
            {"pattern": "2:4", "init_sparsity": 0.5},
            "init_sparsity 0.5 must be below target_sparsity 0.5: lower it, so that weights can return in a cycle",
        ),
        ({"pattern": "2:4", "method": "freeze"}, "pattern '2:4' has no meaning for method freeze: leave it out"),
    ],
)
def test_contradictions_are_refused_in_one_line(settings, message):
    with pytest.raises(PruningError) as error:
        PruningConfig(**settings)
    assert str(error.value) == message


def test_the_target_of_a_preset_gives_way_to_the_pattern(tmp_path):
    words = ["--preset", "digits", "--output_dir", str(tmp_path / "out")]
    assert parse_arguments([*words, "--pattern", "2:4"], "").pruning.resolved("target_sparsity") == 0.5
    assert parse_arguments([*words, "--pattern", "4x1"], "").pruning.target_sparsity == 0.98


def test_in_a_yaml_file_a_pattern_stands_in_quotes(tmp_path, capsys):
    file, words = tmp_path / "settings.yaml", ["--output_dir", str(tmp_path / "out")]
    file.write_text(yaml.safe_dump({"pattern": "2:4"}))
    assert parse_arguments([str(file), *words], "").pruning.pattern == "2:4"
    file.write_text("pattern: 2:4\n")  # 124 in YAML: two minutes and four seconds
    with pytest.raises(SystemExit):
        parse_arguments([str(file), *words], "")
    assert (
        "pattern '124' is neither n:m nor a block: write 2:4 or 4x1 (in a YAML file in quotes"
        in capsys.readouterr().err
    )


# Runs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [5, 12, 22], ids=["ramp", "boundary", "tail"])
@pytest.mark.parametrize("pruning", BOTH, ids=str)
def test_a_resumed_run_is_that_of_one_piece(make_trainer, tmp_path, pruning, at):
    arguments = {"max_steps": 24, "save_strategy": "steps", "save_steps": at}
    one = make_trainer(pruning, output_dir=str(tmp_path / "one"), **arguments)
    one.train()
    resumed = make_trainer(pruning, model=TinyNet(seed=7), output_dir=str(tmp_path / "resumed"), **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "one" / f"checkpoint-{at}"))
    assert same_weights(one.model, resumed.model)
    assert resumed.report.to_dict() == one.report.to_dict()
    assert one.report.config["pattern"] == pruning["pattern"]


def test_a_checkpoint_of_another_pattern_is_refused(make_trainer, tmp_path):
    make_trainer(BOTH[0], max_steps=24, **SAVES).train()
    other = make_trainer(CYCLICAL | {"target_sparsity": 0.5}, max_steps=24, output_dir=str(tmp_path / "other"))
    with pytest.raises(PruningError, match="pattern is '2:4' there, None here"):
        other.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-5"))


def masks_of(rank, folder, pruning, mode):
    arguments = {"max_steps": 24, "per_device_train_batch_size": 8 if mode == "one" else 4}
    trainer = build_trainer(folder, pruning, kind=ShardedTrainer if mode == "fsdp2" else None, **arguments)
    trainer.train()
    return trainer.pruner.state_dict()["masks"], trainer.report.to_dict()["masks"]


@pytest.mark.parametrize("pruning", BOTH, ids=str)
def test_two_processes_choose_the_masks_of_one(tmp_path, pruning):
    masks, report = masks_of(0, tmp_path / "one", pruning, "one")
    for found, other in on_processes(2, masks_of, tmp_path / "two", pruning, "ddp"):
        assert all(torch.equal(mask, masks[name]) for name, mask in found.items())
        assert other == report


def test_fsdp2_refuses_blocks_that_it_would_cut_and_runs_n_of_m(tmp_path):
    masks, _ = masks_of(0, tmp_path / "one", BOTH[0], "one")
    for found, _ in on_processes(2, masks_of, tmp_path / "two", BOTH[0], "fsdp2"):
        assert all(torch.equal(mask, masks[name]) for name, mask in found.items())
    with pytest.raises(
        PruningError, match=r"pattern 4x1 would be cut: conv\.weight has 4 rows, 2 of them on each of 2"
    ):
        on_processes(2, masks_of, tmp_path / "three", BOTH[1], "fsdp2")


def test_what_a_pattern_does_not_fit_is_refused_before_training(make_trainer):
    with pytest.raises(PruningError, match=r"pattern 32x1 fits into no layer \(conv\.weight 4x1x3x3, hidden"):
        make_trainer(CYCLICAL | {"pattern": "32x1"}, max_steps=24).plan()
    with pytest.raises(
        PruningError, match=r"leaves 4 of 393 blocks of 4x1, and row_floor 1 keeps 7: use a sparsity of at"
    ):
        make_trainer(CYCLICAL | {"pattern": "4x1", "target_sparsity": 0.99}, max_steps=24).plan()


class Upscaled(TinyNet):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.ConvTranspose2d(4, 4, 1)


def test_a_transposed_convolution_is_refused_by_name(make_trainer):
    with pytest.raises(PruningError, match="pattern does not fit up, a transposed convolution: exclude it"):
        make_trainer(BOTH[0], model=Upscaled(), max_steps=24).plan()
    make_trainer(BOTH[0] | {"exclude": ["up"]}, model=Upscaled(), max_steps=24).plan()


def test_the_share_of_a_method_gives_way_to_n_of_m():
    assert PruningConfig(method="granet").resolved("share") == "global"
    assert PruningConfig(method="granet", pattern="4x1").resolved("share") == "global"
    assert PruningConfig(method="granet", pattern="2:4").resolved("share") == "uniform"
    with pytest.raises(PruningError, match="share 'global' has no meaning for pattern 2:4"):
        PruningConfig(method="granet", pattern="2:4", share="global")


@pytest.mark.parametrize("method", ["rigl", "snfs", "granet"])
@pytest.mark.parametrize("pruning", [{"pattern": "2:4"}, {"pattern": "4x1", "target_sparsity": 0.75}], ids=str)
def test_an_exchange_of_weights_keeps_the_pattern_in_the_trainer(make_trainer, tmp_path, method, pruning):
    pruning = pruning | {"method": method, "delta_t": 3}
    whole = make_trainer(pruning, output_dir=str(tmp_path / "whole"), max_steps=24, **SAVES)
    whole.train()
    assert whole.report.cycles[-1].recovered > 0
    name = "hidden.weight"  # which both divide
    mask = whole.pruner.masks[name]
    if pruning["pattern"] == "2:4":
        assert NofM(2, 4).broken(whole.model.get_parameter(name).detach()) == 0
        assert (mask.unflatten(1, (-1, 4)).sum(2) == 2).all()
    else:
        rows = mask.unflatten(0, (-1, 4)).sum(1)
        assert ((rows == 0) | (rows == 4)).all()
    again = make_trainer(pruning, output_dir=str(tmp_path / "again"), max_steps=24, **SAVES)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-10"))
    assert again.report.to_dict() == whole.report.to_dict()
    for name, p in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], p), name


# What is told --------------------------------------------------------------------------------------------------------


def test_the_plan_says_the_pattern_and_what_it_does_not_fit(make_trainer):
    text = describe_plan(make_trainer(BOTH[0], max_steps=24))
    assert "Plan: cyclical, sparsity 0.5, 2:4 along the inputs, share uniform" in text
    assert "Weights that fill no group of 2:4 are pruned unstructured: conv.weight 36." in text
    text = describe_plan(make_trainer(BOTH[1], max_steps=24))
    assert "Plan: cyclical, sparsity 0.75, blocks of 4x1 (outputs x inputs), share uniform" in text
    assert "Weights that fill no block of 4x1 are pruned unstructured: head.weight 72." in text
    assert "pattern" not in describe_plan(make_trainer(CYCLICAL, max_steps=24))


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    """A folder with a 2:4 model, and the report that its run would have."""
    folder = tmp_path_factory.mktemp("sparse")
    report = save_pruned("cifar_resnet8", folder, 0.0)
    weights, changed, layers = load_file(folder / "model.safetensors"), {}, []
    for layer in report.layers:
        name = layer.name.removeprefix("timm_model.")
        out = {name: torch.empty_like(weights[name], dtype=torch.bool)}
        pattern = PruningConfig(pattern="2:4").arrangement
        pattern({name: weights[name]}, 0.5, PruningConfig().choice.share, 1, out)
        changed[name] = weights[name] * out[name]
        layers.append(dataclasses.replace(layer, kept=int(out[name].sum())))
    save_file(weights | changed, folder / "model.safetensors", {"format": "pt"})
    config = PruningConfig(pattern="2:4", cycles=2, exclude=["head*"]).to_dict()
    report = dataclasses.replace(report, config=config, layers=tuple(layers))
    return folder, report, stamp(folder, report)


def test_the_record_says_the_pattern_and_verify_finds_a_group_that_breaks_it(sparse):
    folder, _, metadata = sparse
    assert metadata["settings"]["pattern"] == "2:4"
    assert json.loads((folder / "config.json").read_text())["hf_cyclical"]["pattern"] == "2:4"
    found = verify(folder)
    assert found.ok
    assert ("groups beyond 2:4", "0", "0") in found.rows
    edit_json(folder / "sparsity.json", lambda record: record["settings"].update(pattern="1:4"))
    found = verify(folder)
    broken = sum(NofM(1, 4).broken(w) for w in load_file(folder / "model.safetensors").values() if w.dim() > 1)
    assert any(line.startswith("groups beyond 1:4 is recorded as 0, but is ") for line in found.differences)
    assert ("groups beyond 1:4", "0", f"{broken:,}") in found.rows


def test_the_plan_and_the_card_of_snfs_say_whether_weights_moved_between_layers(make_trainer, sparse):
    _, report, metadata = sparse
    for pattern, moved in (("2:4", False), ("4x1", True)):
        config = PruningConfig(method="snfs", pattern=pattern)
        text = describe_plan(make_trainer(config, max_steps=24))
        assert ("by rank" in text) == moved
        card = render_card(dataclasses.replace(report, config=config.to_dict()), metadata)
        assert ("Weights moved between the layers" in card) == moved
        assert ("Every layer was pruned to the same sparsity" in card) == (not moved)


def test_the_card_of_a_structured_model(sparse):
    _, report, metadata = sparse
    card = render_card(report, metadata)
    assert_whole(card)
    assert front(card)["tags"] == [
        "hf_cyclical", "pruned", "sparse", "semi-structured-sparsity", "2:4", "sparsity-50",
    ]  # fmt: skip
    assert "Of every 4 consecutive inputs of an output at most 2 have a weight (2:4); the inputs" in card
    assert "What does not fill a group was pruned unstructured, in `conv1.weight`.\n" in card
    assert "unstructured zeros" not in card
    assert "`torch.sparse.to_sparse_semi_structured`" in card
    report = dataclasses.replace(report, config={**report.config, "pattern": "4x1"})
    card = render_card(report, metadata)
    assert_whole(card)
    assert front(card)["tags"][3:5] == ["block-sparsity", "4x1"]
    assert "in blocks of 4 consecutive outputs and 1 consecutive inputs (4x1)" in card
    assert "pruned unstructured, in `fc.weight`.\n" in card  # of 3 outputs
    report = dataclasses.replace(report, config={**report.config, "method": "freeze", "pattern": None})
    assert front(render_card(report, metadata))["tags"] == ["hf_cyclical", "pruned", "sparse", "sparsity-50"]
