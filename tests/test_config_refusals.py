"""Settings that PruningConfig refuses: bad values, contradictions, runs that are too short."""

import dataclasses

import pytest

from hf_cyclical import PruningConfig, PruningError
from hf_cyclical.methods import METHODS as ROWS

METHODS = list(ROWS)


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
        ("cycles", 0, "must be a whole number of at least 1, or auto", "use 1 for a single cycle"),
        ("cycles", -3, "must be a whole number of at least 1, or auto", "use 1 for a single cycle"),
        ("cycles", 2.5, "must be a whole number of at least 1, or auto", "use 1 for a single cycle"),
        ("delta_t", 0, "must be a whole number of at least 1, or auto", "use 100"),
        ("delta_t", 0.5, "must be a whole number of at least 1, or auto", "use 100"),
        ("ramp_fraction", 0.0, "must be in (0, 1]", "such as 0.8"),
        ("ramp_fraction", 1.1, "must be in (0, 1]", "such as 0.8"),
        ("ramp_fraction", -0.8, "must be in (0, 1]", "such as 0.8"),
        ("lr_drop_at", 0.0, "must be in (0, 1]", "use 0.75"),
        ("lr_drop_at", 2, "must be in (0, 1]", "use 0.75"),
        ("lr_drop_factor", 10, "must be in [0, 1]", "use 0.1"),
        ("row_floor", -1, "must be a whole number of at least 0", "use 1, or 0 to turn it off"),
        ("row_floor", 0.5, "must be a whole number of at least 0", "use 1, or 0 to turn it off"),
        ("dense_epochs", -1, "must be 0 or more", "use 0"),
        ("dense_epochs", float("inf"), "must be 0 or more", "use 0"),
        ("dense_updates", -1, "must be a whole number of at least 0", "use 0"),
        ("dense_updates", 1.5, "must be a whole number of at least 0", "use 0"),
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
        ("share", "uniformly", "uniform"),
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
        ("share", "xyz", ["uniform", "erk", "lamp", "global"]),
        ("scope", "xyz", ["local", "global", "lamp"]),
        ("method", None, METHODS),
    ],
)
def test_a_name_near_none_is_refused_with_all_the_names_there_are(field, value, names):
    message = refusal(PruningConfig, **{field: value})
    assert message == f"{field} {value!r} is not one of {', '.join(names)}: choose one of them"


@pytest.mark.parametrize("value", ["false", 0.5])
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
        ("freeze", "share", "uniform"),
        ("freeze", "layer_sparsity", ["fc=0"]),
        ("freeze", "row_floor", 1),
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


def test_masked_momentum_where_nothing_is_pruned_is_refused():
    message = refusal(PruningConfig, target_sparsity=0, mask_momentum=True)
    assert message == "mask_momentum True has no effect where nothing is pruned: raise target_sparsity above 0"


@pytest.mark.parametrize("lever", [{"lr_warmup": 0.1}, {"tail": 0.2}])
def test_so_are_levers_of_the_recipe(lever):
    assert "has no effect where nothing is pruned" in refusal(PruningConfig, target_sparsity=0, **lever)


def test_a_dense_and_a_sparse_phase_alone_are_refused():
    assert refusal(PruningConfig, method="acdc", cycles=1) == "cycles 1 is too few for method acdc: use 2 or more"


@pytest.mark.parametrize("settings", [{"method": "pgd"}, {"ramp_fraction": 1.0, "delta_t": 1}])
def test_an_average_that_never_begins_is_refused(settings):
    message = refusal(PruningConfig(ema_decay=0.9, **settings).recipe, 100)
    assert message == "ema_decay 0.9 has no effect, as masks are chosen again after the last update: leave it out"


def test_values_of_a_wrong_kind_are_refused_in_a_line():
    assert "must be a list of patterns" in refusal(PruningConfig, include=5)
    assert "is not one of" in refusal(PruningConfig, method=["cyclical"])
    assert PruningConfig(dense_updates=None).recipe(100).T == 100


HELP = {field.name: field.metadata["help"] for field in dataclasses.fields(PruningConfig)}


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [(m, name, value) for m, row in ROWS.items() for name, value in row.defaults.items() if value is not None],
)
def test_the_help_of_a_setting_names_the_methods_that_have_another_default(method, name, value):
    assert method in HELP[name]
    assert str(value) in HELP[name]
