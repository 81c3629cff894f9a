import dataclasses
import json

import pytest
import reference

from hf_cyclical import PruningConfig, PruningError
from hf_cyclical.core import recipes
from hf_cyclical.core.masks import LAYER_FLOOR

METHODS = ["cyclical", "gradual", "gradual_recovery", "cyclical_lr", "iterative", "one_shot", "pgd", "freeze"]
PRUNING_METHODS = [method for method in METHODS if method != "freeze"]


def refusal(make, *args, **kwargs):
    """The message of the PruningError that a call raises, of which every one has a single line."""
    with pytest.raises(PruningError) as error:
        make(*args, **kwargs)
    message = str(error.value)
    assert "\n" not in message
    return message


# Bad values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "rule", "remedy"),
    [
        ("target_sparsity", 1.0, "must be in [0, 1)", "such as 0.9 for 90 %"),
        ("target_sparsity", 90, "must be in [0, 1)", "such as 0.9 for 90 %"),
        ("target_sparsity", -0.1, "must be in [0, 1)", "give a fraction"),
        ("target_sparsity", float("nan"), "must be in [0, 1)", "give a fraction"),
        ("target_sparsity", "0.9", "must be in [0, 1)", "give a fraction"),
        ("target_sparsity", True, "must be in [0, 1)", "give a fraction"),
        ("init_sparsity", 1.5, "must be in [0, 1)", "give a fraction"),
        ("init_sparsity", -0.5, "must be in [0, 1)", "give a fraction"),
        ("cycles", 0, "must be a whole number of at least 1", "use 1 for a single cycle"),
        ("cycles", -3, "must be a whole number of at least 1", "use 1 for a single cycle"),
        ("cycles", 2.5, "must be a whole number of at least 1", "use 1 for a single cycle"),
        ("delta_t", 0, "must be a whole number of at least 1", "use 100"),
        ("delta_t", 0.5, "must be a whole number of at least 1", "use 100"),
        ("ramp_fraction", 0.0, "must be in (0, 1]", "such as 0.8"),
        ("ramp_fraction", 1.1, "must be in (0, 1]", "such as 0.8"),
        ("ramp_fraction", -0.8, "must be in (0, 1]", "such as 0.8"),
        ("lr_drop_at", 0.0, "must be in (0, 1]", "use 0.75"),
        ("lr_drop_at", 2, "must be in (0, 1]", "use 0.75"),
        ("lr_drop_factor", 10, "must be in [0, 1]", "use 0.1"),
        ("layer_floor", -0.1, "must be in [0, 1]", "0 to turn it off"),
        ("layer_floor", 10, "must be in [0, 1]", "0 to turn it off"),
        ("dense_epochs", -1, "must be 0 or more", "use 0"),
        ("dense_epochs", float("inf"), "must be 0 or more", "use 0"),
        ("dense_updates", -1, "must be a whole number of 0 or more", "use 0"),
        ("dense_updates", 1.5, "must be a whole number of 0 or more", "use 0"),
    ],
)
def test_a_bad_number_is_refused_with_field_value_rule_and_remedy(field, value, rule, remedy):
    message = refusal(PruningConfig, **{field: value})
    assert message.startswith(f"{field} {value!r} {rule}: ")
    assert remedy in message.rpartition(": ")[2]


@pytest.mark.parametrize(
    ("field", "value", "near"),
    [
        ("method", "cyclic", "cyclical"),
        ("method", "oneshot", "one_shot"),
        ("schedule", "cubical", "cubic"),
        ("lr_shape", "cosin", "cosine"),
        ("scope", "locally", "local"),
    ],
)
def test_an_unknown_name_is_refused_with_the_names_there_are_and_the_nearest(field, value, near):
    message = refusal(PruningConfig, **{field: value})
    assert message.startswith(f"{field} {value!r} is not one of ")
    assert message.endswith(f": did you mean {near}?")


@pytest.mark.parametrize(
    ("field", "value", "names"),
    [
        ("method", "xyz", METHODS),
        ("schedule", "xyz", ["cubic", "linear", "step", "constant"]),
        ("lr_shape", "xyz", ["drop", "cosine", "linear", "constant"]),
        ("scope", None, ["local", "global", "lamp"]),
        ("method", None, METHODS),
    ],
)
def test_a_name_near_none_is_refused_with_all_the_names_there_are(field, value, names):
    message = refusal(PruningConfig, **{field: value})
    assert message == f"{field} {value!r} is not one of {', '.join(names)}: choose one of them"


@pytest.mark.parametrize("value", ["false", 0.5, None])
def test_a_switch_is_true_or_false(value):
    message = refusal(PruningConfig, mask_momentum=value)
    assert message == f"mask_momentum {value!r} must be true or false: write one of them"


# Contradictions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "field", "value"),
    [
        ("gradual", "cycles", 5),
        ("gradual", "init_sparsity", 0.4),
        ("gradual_recovery", "cycles", 5),
        ("cyclical_lr", "init_sparsity", 0.4),
        ("one_shot", "cycles", 2),
        ("one_shot", "delta_t", 100),
        ("iterative", "schedule", "cubic"),
        ("iterative", "ramp_fraction", 0.8),
        ("pgd", "delta_t", 1),
        ("pgd", "lr_shape", "constant"),
        ("freeze", "target_sparsity", 0.9),
        ("freeze", "delta_t", 100),
        ("freeze", "layer_floor", 0.1),
        ("one_shot", "mask_momentum", True),
        ("iterative", "mask_momentum", True),
        ("freeze", "mask_momentum", True),
    ],
)
def test_a_setting_that_the_method_lacks_is_refused(method, field, value):
    message = refusal(PruningConfig, method=method, **{field: value})
    assert message == f"{field} {value!r} has no meaning for method {method}: leave it out"


@pytest.mark.parametrize(("init", "target"), [(0.8, 0.8), (0.9, 0.8), (0.9, None)])
def test_an_init_sparsity_that_is_not_below_the_target_is_refused(init, target):
    message = refusal(PruningConfig, init_sparsity=init, target_sparsity=target)
    shown = 0.9 if target is None else target
    assert message.startswith(f"init_sparsity {init} must be below target_sparsity {shown}: ")
    assert message.rpartition(": ")[2]


@pytest.mark.parametrize("scope", ["local", "lamp"])
def test_a_floor_is_on_in_global_scope_and_refused_where_it_has_no_effect(scope):
    message = refusal(PruningConfig, scope=scope, layer_floor=0.2)
    assert message == f"layer_floor 0.2 has no meaning for scope {scope}: leave it out"
    assert PruningConfig(scope=scope).to_dict()["layer_floor"] is None
    assert PruningConfig(scope="global").to_dict()["layer_floor"] == LAYER_FLOOR > 0


def test_dense_epochs_and_dense_updates_exclude_each_other():
    message = refusal(PruningConfig, dense_epochs=2, dense_updates=100)
    assert message == "dense_updates 100 contradicts dense_epochs 2: give one of them"


@pytest.mark.parametrize("field", ["dense_epochs", "dense_updates"])
def test_a_dense_start_would_undo_what_freeze_keeps(field):
    message = refusal(PruningConfig, method="freeze", **{field: 3})
    assert message == f"{field} 3 would undo the zeros that method freeze keeps: leave it out"


# Runs that are too short ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "shortest"),
    [
        ({"cycles": 5}, 10),
        ({"method": "cyclical_lr", "cycles": 3}, 6),
        ({"method": "iterative", "cycles": 4}, 8),
        ({"method": "gradual"}, 2),
        ({"method": "gradual_recovery"}, 2),
        ({"cycles": 2, "dense_updates": 7}, 11),
    ],
)
def test_a_run_with_less_than_two_updates_per_cycle_is_refused(settings, shortest):
    config = PruningConfig(**settings)
    assert config.recipe(shortest).s_t == pytest.approx(0.9)
    message = refusal(config.recipe, shortest - 1)
    assert message.startswith(f"cycles {settings.get('cycles', 1)} takes at least ")
    assert "the run has" in message
    assert "train longer" in message.rpartition(": ")[2]


@pytest.mark.parametrize("method", ["one_shot", "pgd", "freeze"])
def test_methods_without_a_ramp_need_one_update(method):
    assert PruningConfig(method=method).recipe(1).T == 1


def test_a_dense_start_that_leaves_nothing_is_refused():
    by_updates = refusal(PruningConfig(dense_updates=100).recipe, 100)
    assert by_updates.startswith("dense_updates 100 leaves nothing of the run's 100 updates to prune in: lower it")
    by_epochs = refusal(PruningConfig(dense_epochs=3.0).recipe, 300, epochs=3)
    assert by_epochs.startswith("dense_epochs 3.0 leaves nothing of the run's 3 epochs to prune in: lower it")


def test_dense_epochs_need_a_run_counted_in_epochs():
    message = refusal(PruningConfig(dense_epochs=1.0).recipe, 100)
    assert message == "dense_epochs 1.0 needs a run counted in epochs: use dense_updates with max_steps"


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
        {"method": "pgd", "target_sparsity": 0.5, "scope": "global"},
        {"scope": "global", "layer_floor": 0.0},
        {"scope": "lamp"},
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
    ],
)
def test_every_method_is_built_from_its_settings(method, settings, recipe):
    rates = {} if method == "pgd" else {"lr_drop_at": 0.5, "lr_drop_factor": 0.2}
    built = PruningConfig(method=method, target_sparsity=0.8, **settings, **rates).recipe(90)
    assert built.cycles == recipe.cycles
    for t in range(90):
        assert built.s(t) == recipe.s(t)
        assert built.eta(t) == recipe.eta(t)
        assert built.update_at(t) == recipe.update_at(t)
        assert built.project_at(t) == recipe.project_at(t)


def test_what_is_stored_says_what_ran():
    stored = PruningConfig().to_dict()
    assert (stored["target_sparsity"], stored["cycles"], stored["init_sparsity"]) == (0.9, 5, 0.45)
    assert (stored["schedule"], stored["delta_t"], stored["lr_shape"], stored["lr_drop_at"]) == (
        "cubic",
        100,
        "drop",
        0.75,
    )
