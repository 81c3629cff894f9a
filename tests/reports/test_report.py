"""PruningReport: JSON round trip, the table, the plot, and what a damaged file says."""

import copy
import dataclasses
import json
import pickle
from dataclasses import replace

import pytest

from hf_cyclical import CycleReport, PruningError, PruningReport, load_report
from hf_cyclical.reports import LayerReport, plot_run, show


@pytest.fixture
def report():
    cycles = [
        CycleReport(
            cycle=c, update=50 * c, epoch=2.0 * c, sparsity=0.9, regrown=0.01 * (c - 1), recovered=7 * (c - 1),
            mask_distance=0.2 * (c - 1), learning_rate=0.01, at_target=True, metrics={"accuracy": 0.7 + 0.05 * c},
        )
        for c in (1, 2)
    ]  # fmt: skip
    return PruningReport(
        config={"method": "cyclical", "target_sparsity": 0.9},
        updates=100,
        dense_updates=0,
        parameters=250,
        schedule=((0, 0.1), (40, 0.01), (50, 0.1), (90, 0.01)),
        masks=((0, 0.0, 0.0), (40, 0.9, 0.0), (50, 0.45, 0.45), (90, 0.9, 0.01)),
        evaluations=(
            {"update": 0, "accuracy": 0.85},
            {"update": 50, "accuracy": 0.75},
            {"update": 100, "accuracy": 0.8},
        ),
        dense={"accuracy": 0.85},
        cycles=tuple(cycles),
        layers=(LayerReport("conv.weight", (10, 20), 200, 20, 2),),
    )


def test_json_round_trip(report, tmp_path):
    path = report.save(tmp_path)
    assert load_report(path) == load_report(tmp_path) == report


def test_json_round_trip_with_the_layers_of_each_cycle(report, tmp_path):
    layers = [LayerReport("conv.weight", (10, 20), 200, 20, 2, empty=1, at_floor=3)]
    made = replace(report, cycles=[replace(cycle, layers=layers) for cycle in report.cycles])
    found = load_report(made.save(tmp_path))
    assert found == made
    assert found.cycles[1].layers[0].at_floor == 3


def test_both_denominators(report):
    assert report.pruned == 180
    assert report.sparsity == 0.9
    assert report.overall_sparsity == 180 / 250


def test_mean_density_is_over_all_updates(report):
    """Masks that are chosen after update 40 are those of the passes from update 41 on."""
    assert report.mean_density == pytest.approx((41 * 1 + 10 * 0.1 + 40 * 0.55 + 9 * 0.1) / 100)
    assert "kept 64.90 % of them in the mean over all updates" in report.summary()


def test_mean_density_of_a_long_run_with_dense_weights_between(report):
    """Of 5,001 choices of masks, every second update, only some are kept; each had a pass of its own."""
    made = replace(report, config={"method": "gradual_recovery", "delta_t": 2}, updates=12_000, masks=())
    for update in range(0, 10_001, 2):
        made = made.with_masks(update, 0.8, 0.0)
    assert len(made.masks) < 2500
    assert made.mean_density == pytest.approx((1 + 5000 * (0.2 + 1) + 0.2 * 1999) / 12_000)


def test_table_sets_every_cycle_beside_the_dense_model(report):
    lines = report.table().splitlines()
    assert lines[0].split() == ["accuracy", "sparsity", "regrown", "mask", "distance", "recovered"]
    assert lines[2].split() == ["dense", "85.00", "%", "0.00", "%"]
    assert lines[4].split() == ["cycle", "2", "80.00", "%", "90.00", "%", "1.00", "%", "0.200", "7"]


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("accuracy", 0.85, "85.00 %"),
        ("mAP50", 0.5, "50.00 %"),
        ("top5", 1, "100.00 %"),
        ("mean_iou", 0.0, "0.00 %"),
        ("acc1", 0.25, "25.00 %"),
        ("AP50", 0.5, "50.00 %"),
        ("AR_100", 0.5, "50.00 %"),
        ("error_rate", 0.125, "12.50 %"),
        ("accuracy", 87.5, "87.5"),  # already in percent
        ("loss", 0.5, "0.5"),
        ("perplexity", 0.5, "0.5"),
        ("accuracy", None, "-"),
    ],
)
def test_rates_are_shown_in_percent(metric, value, shown):
    assert show(value, metric) == shown


def test_long_runs_keep_a_bounded_number_of_points(report):
    for t in range(100_000):
        report = report.with_masks(t, 0.5, 0.1)
    assert len(report.masks) <= 2001
    assert report.masks[-1][0] == 99_999


def test_a_report_cannot_be_changed(report, tmp_path):
    report = replace(report, about={"versions": {"torch": "2.9"}})
    inside = [report.config, report.dense, report.about, report.about["versions"]]
    for values in [*inside, report.evaluations[0], report.cycles[0].metrics]:
        for change in (
            lambda d: d.__setitem__("accuracy", 1.0),
            lambda d: d.update(accuracy=1.0),
            lambda d: d.setdefault("accuracy", 1.0),
            lambda d: d.__ior__({"accuracy": 1.0}),
            lambda d: d.pop("accuracy", None),
            lambda d: d.clear(),
        ):
            with pytest.raises(TypeError, match="a report cannot be changed: make another"):
                change(values)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.updates = 1
    assert pickle.loads(pickle.dumps(report)) == copy.deepcopy(report) == report  # noqa: S301 - our own
    assert load_report(report.save(tmp_path)) == report
    assert type(report.to_dict()["about"]["versions"]) is dict


def test_values_that_a_report_was_made_of_are_the_callers_own(report):
    config, row = {"method": "cyclical"}, {"update": 0, "accuracy": 0.5}
    report = replace(report, config=config, evaluations=[row])
    config["method"], row["accuracy"] = "gradual", 0.9
    assert (report.config, report.evaluations) == ({"method": "cyclical"}, ({"update": 0, "accuracy": 0.5},))


def test_what_happens_next_makes_a_new_report_and_leaves_the_one_before(report):
    before = report.to_dict()
    cycle = dataclasses.replace(report.cycles[1], cycle=3, update=150, metrics={})
    after = report.with_masks(140, 0.9, 0.02).with_cycle(cycle).with_evaluation(150, {"accuracy": 0.83})
    assert report.to_dict() == before
    assert (after.masks[-1], after.cycles[-1].metrics) == ((140, 0.9, 0.02), {"accuracy": 0.83})
    assert after.cycles[:2] == report.cycles
    assert after.evaluations[-1] == {"update": 150, "accuracy": 0.83}
    assert after.dense == {"accuracy": 0.85}
    assert cycle.metrics == {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.cycles = ()


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot_is_drawn_from_the_report_alone(report, tmp_path, ending):
    report.save(tmp_path)
    path = plot_run(load_report(tmp_path), tmp_path / f"run.{ending}")
    head = path.read_bytes()[:100]
    assert head.startswith(b"\x89PNG") if ending == "png" else b"<?xml" in head


def test_plot_without_evaluations(report, tmp_path):
    cycles = tuple(replace(c, metrics={}) for c in report.cycles)
    report = replace(report, dense={}, evaluations=(), cycles=cycles)
    assert plot_run(report, tmp_path / "run.png").is_file()


def test_a_newer_schema_and_a_cut_file_are_named(report, tmp_path):
    path = report.save(tmp_path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"schema": 99}))
    with pytest.raises(PruningError, match="schema 99"):
        load_report(path)
    path.write_text(json.dumps(data)[:200])
    with pytest.raises(PruningError, match="not a complete report"):
        load_report(path)
