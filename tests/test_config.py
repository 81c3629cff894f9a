"""PruningConfig: the recipes that it builds, and how it is stored."""

import dataclasses
import json

import pytest
import reference

from hf_cyclical import PruningConfig, PruningError
from hf_cyclical.core import Regrowth, acdc, dpf, granet, recipes, rigl, snfs

METHODS = ["cyclical", "gradual", "gradual_recovery", "cyclical_lr", "iterative", "one_shot", "pgd", "freeze"]
METHODS += ["rigl", "snfs", "dpf", "granet"]
PRUNING_METHODS = [method for method in METHODS if method != "freeze"]


# Recipes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.5, 0.9, 0.95, 0.98])
@pytest.mark.parametrize("method", PRUNING_METHODS)
def test_every_method_ends_at_the_target(method, target):
    for updates in (10, 37, 1000):
        recipe = PruningConfig(method=method, target_sparsity=target).recipe(updates)
        last = max(t for t in range(updates) if recipe.update_at(t))
        assert updates == recipe.T
        assert recipe.s(last) == target
        assert recipe.s_t == target


def test_the_default_is_the_papers_cyclical_pruning():
    recipe, oracle = PruningConfig().recipe(2003), reference.Cyclical(0.9, T=2003, k=5, delta_t=100, ramp=0.8)
    for t in range(2003):
        assert (recipe.s(t), recipe.eta(t), recipe.update_at(t)) == (oracle.s(t), oracle.eta(t), oracle.update_at(t))


def test_every_setting_of_cyclical_pruning_reaches_the_recipe():
    config = PruningConfig(
        target_sparsity=0.8,
        cycles=2,
        init_sparsity=0.2,
        schedule="linear",
        delta_t=3,
        ramp_fraction=0.5,
        lr_drop_at=0.5,
        lr_drop_factor=0.2,
    )
    recipe = config.recipe(20)
    assert [recipe.s(t) for t in (0, 1, 5, 9, 10, 11, 15)] == pytest.approx([0, 0.16, 0.8, 0.8, 0.2, 0.32, 0.8])
    assert [t for t in range(20) if recipe.update_at(t)] == [0, 3, 5, 10, 13, 15]
    assert [recipe.eta(t) for t in range(20)] == ([1.0] * 5 + [0.2] * 5) * 2


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("drop", [1.0, 1.0, 1.0, 0.1]),
        ("cosine", [1.0, 0.8535534, 0.5, 0.1464466]),
        ("linear", [1.0, 0.75, 0.5, 0.25]),
        ("constant", [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_lr_shape_is_the_learning_rate_within_a_cycle(shape, expected):
    recipe = PruningConfig(cycles=2, lr_shape=shape).recipe(8)
    assert [recipe.eta(t) for t in range(8)] == pytest.approx(expected * 2)


@pytest.mark.parametrize(
    ("dense", "epochs"), [({"dense_updates": 40}, None), ({"dense_epochs": 2}, 5), ({"dense_epochs": 0.4}, 1)]
)
def test_a_dense_start_is_part_of_the_run(dense, epochs):
    recipe = PruningConfig(cycles=3, delta_t=5, **dense).recipe(100, epochs)
    assert recipe.cycles == (range(40, 60), range(60, 80), range(80, 100))
    assert not any(recipe.update_at(t) for t in range(40))
    assert [recipe.eta(t) for t in range(40)] == [1.0] * 30 + [0.1] * 10


def test_the_dense_start_has_the_learning_rate_of_a_cycle():
    recipe = PruningConfig(cycles=1, lr_shape="linear", dense_updates=4).recipe(8)
    assert [recipe.eta(t) for t in range(8)] == [1.0, 0.75, 0.5, 0.25] * 2


def test_freeze_has_one_learning_rate_cycle_unless_told():
    assert PruningConfig(method="freeze").recipe(12).cycles == (range(12),)
    assert PruningConfig(method="freeze", cycles=2).recipe(12).cycles == (range(6), range(6, 12))


@pytest.mark.parametrize(
    ("settings", "prunes"), [({}, True), ({"target_sparsity": 0.0}, False), ({"method": "freeze"}, True)]
)
def test_only_a_target_of_0_is_nothing_to_do(settings, prunes):
    assert PruningConfig(**settings).prunes is prunes


# As data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": "freeze", "cycles": 2, "exclude": ["head"]},
        {"method": "pgd", "target_sparsity": 0.5, "share": "global"},
        {"share": "global"},
        {"share": "lamp"},
        {"method": "rigl", "init_masks": "random", "share": "erk", "drop_fraction": 0.2, "replace_step": False},
        {"method": "snfs"},
        {"method": "dpf", "pattern": "2:4"},
        {"method": "granet", "delta_t": 50},
        {"method": "acdc", "share": "erk", "layer_sparsity": ["layer1.*=0.8", "fc=0"]},
        {
            "target_sparsity": 0.98,
            "cycles": 3,
            "init_sparsity": 0.4,
            "schedule": "step",
            "delta_t": 7,
            "ramp_fraction": 0.6,
            "lr_shape": "cosine",
            "include": ["stage*"],
            "exclude": ["stage1.*"],
            "dense_epochs": 1.5,
        },
    ],
)
def test_a_config_survives_a_round_trip_through_json(settings):
    config = PruningConfig(**settings)
    again = PruningConfig(**json.loads(json.dumps(config.to_dict())))
    assert again.to_dict() == config.to_dict()


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PruningConfig().cycles = 3


def test_unset_settings_resolve_to_the_papers_defaults():
    config = PruningConfig()
    resolved = {name: config.resolved(name) for name in ("target_sparsity", "cycles", "delta_t", "ramp_fraction")}
    assert resolved == {"target_sparsity": 0.9, "cycles": 5, "delta_t": 100, "ramp_fraction": 0.8}
    assert config.resolved("schedule") == "cubic"
    assert PruningConfig(cycles=3).resolved("cycles") == 3


RISE = {"delta_t": 7, "ramp": 0.6, "shape": "linear", "lr": recipes.lr_drop(0.5, 0.2)}
SETTINGS = {"delta_t": 7, "ramp_fraction": 0.6, "schedule": "linear"}


@pytest.mark.parametrize(
    ("method", "settings", "recipe"),
    [
        (
            "cyclical",
            SETTINGS | {"cycles": 3, "init_sparsity": 0.2},
            recipes.cyclical(0.8, 90, k=3, s_init=0.2, **RISE),
        ),
        ("gradual", SETTINGS, recipes.gradual(0.8, 90, **RISE)),
        ("gradual_recovery", SETTINGS, recipes.gradual_recovery(0.8, 90, **RISE)),
        ("cyclical_lr", SETTINGS | {"cycles": 3}, recipes.cyclical_lr(0.8, 90, k=3, **RISE)),
        ("iterative", {"cycles": 3}, recipes.iterative(0.8, 90, k=3, lr=RISE["lr"])),
        ("one_shot", {}, recipes.one_shot(0.8, 90, lr=RISE["lr"])),
        ("pgd", {}, recipes.pgd(0.8, 90)),
        (
            "rigl",
            {"delta_t": 7, "drop_fraction": 0.2, "ramp_fraction": 0.6, "replace_step": False},
            rigl(0.8, 90, delta_t=7, fraction=0.2, stop=0.6, replace_step=False, lr=RISE["lr"]),
        ),
        ("rigl", {"delta_t": 7}, rigl(0.8, 90, delta_t=7, lr=RISE["lr"])),
        ("snfs", {"delta_t": 7, "drop_fraction": 0.2}, snfs(0.8, 90, delta_t=7, fraction=0.2, lr=RISE["lr"])),
        ("snfs", {}, snfs(0.8, 90, lr=RISE["lr"])),
        ("dpf", {"delta_t": 7, "ramp_fraction": 0.6}, dpf(0.8, 90, delta_t=7, ramp=0.6, lr=RISE["lr"])),
        ("dpf", {}, dpf(0.8, 90, lr=RISE["lr"])),
        (
            "granet",
            {"delta_t": 7, "drop_fraction": 0.2, "ramp_fraction": 0.6},
            granet(0.8, 90, delta_t=7, fraction=0.2, ramp=0.6, lr=RISE["lr"]),
        ),
        ("granet", {}, granet(0.8, 90, lr=RISE["lr"])),
        ("acdc", {"cycles": 3}, acdc(0.8, 90, k=3, lr=RISE["lr"])),
    ],
)
def test_every_method_is_built_from_its_settings(method, settings, recipe):
    rates = {} if method == "pgd" else {"lr_shape": "drop", "lr_drop_at": 0.5, "lr_drop_factor": 0.2}
    built = PruningConfig(method=method, target_sparsity=0.8, **settings, **rates).recipe(90)
    assert built.cycles == recipe.cycles
    for t in range(90):
        assert built.s(t) == recipe.s(t)
        assert built.eta(t) == recipe.eta(t)
        assert built.update_at(t) == recipe.update_at(t)
        assert built.project_at(t) == recipe.project_at(t)
        assert built.hold_at(t) == recipe.hold_at(t)
        if isinstance(recipe.choose, Regrowth):
            assert built.choose.fraction(t) == recipe.choose.fraction(t)
    assert built.straight_through == recipe.straight_through


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "snfs", "layer_sparsity": ["fc=0.5"]}, "layer_sparsity .* has no meaning for method snfs"),
        ({"init_masks": "random"}, "init_masks 'random' has no meaning for method cyclical"),
        ({"method": "rigl", "init_masks": "chance"}, "init_masks 'chance' is not one of magnitude, random"),
        ({"method": "rigl", "drop_fraction": 0}, r"drop_fraction 0 must be in \[0.005, 1\]"),
        ({"method": "granet", "mask_momentum": True}, "mask_momentum True has no meaning for method granet"),
    ],
)
def test_settings_of_other_methods_are_refused(settings, words):
    with pytest.raises(PruningError, match=words):
        PruningConfig(**settings)


def test_what_is_stored_says_what_ran():
    stored = PruningConfig().to_dict()
    assert (stored["target_sparsity"], stored["cycles"], stored["init_sparsity"]) == (0.9, 5, 0.45)
    assert (stored["schedule"], stored["delta_t"], stored["lr_shape"], stored["lr_drop_at"]) == (
        "cubic",
        100,
        "drop",
        0.75,
    )
