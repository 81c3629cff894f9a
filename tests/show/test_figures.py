"""The interactive figures, read as the data that they are."""

import json
from dataclasses import replace

import pytest
from support.made_reports import made, with_metric, without_metrics

from hf_cyclical.reports import LayerReport
from hf_cyclical.show.figures import MEASURES, layer_figure, run_figure


def curves(figure):
    return {curve["name"]: curve for curve in figure["data"]}


def test_every_cycle_has_its_accuracy_in_percent():
    report = replace(made(cycles=3), dense={"accuracy": 0.75})
    found = curves(run_figure(report))
    assert found["end of each cycle"]["x"] == [10, 20, 30]
    assert found["end of each cycle"]["y"] == pytest.approx([52, 54, 56])
    assert found["end of each cycle"]["text"] == ["52.00", "54.00", "56.00"]
    assert found["dense"]["y"] == [75, 75]


def test_a_metric_that_is_in_percent_already_is_shown_as_it_is():
    report = made(cycles=2, evaluations=[])
    cycles = [replace(c, metrics={"accuracy": 93.2}) for c in report.cycles]
    figure = run_figure(replace(report, cycles=cycles, dense={"accuracy": 0.5}))
    found = curves(figure)
    assert found["end of each cycle"]["y"] == [93.2, 93.2]
    assert found["end of each cycle"]["text"] == ["93.2", "93.2"]
    assert found["dense"]["y"] == [0.5, 0.5]
    assert figure["layout"]["yaxis"]["title"]["text"] == "<b>accuracy</b>"


def test_masks_and_rates_hold_until_they_change_and_the_last_until_the_end():
    masks = [[5, 0.5, 0.0], [8, 0.9, 0.25]]
    report = made(cycles=1, masks=masks, schedule=[[0, 0.1], [5, 0.01]])
    found = curves(run_figure(report))
    assert (found["sparsity"]["x"], found["sparsity"]["y"]) == ([0, 5, 8, 10], [0, 50, 90, 90])
    assert (found["regrown"]["x"], found["regrown"]["y"]) == ([0, 5, 8, 10], [0, 0, 25, 25])
    assert (found["learning rate"]["x"], found["learning rate"]["y"]) == ([0, 5, 10], [0.1, 0.01, 0.01])
    assert found["sparsity"]["line"]["shape"] == "hv"


def test_a_run_in_progress_is_drawn_as_far_as_it_went_on_the_axis_of_all_of_it():
    report = made(cycles=2, updates=100, layers=0)
    figure = run_figure(report)
    assert curves(figure)["sparsity"]["x"][-1] == 20
    assert figure["layout"]["xaxis"]["range"][1] >= 100


@pytest.mark.parametrize("report", [without_metrics(made()), made(cycles=0, layers=0, schedule=[]), made(cycles=40)])
def test_what_is_not_there_is_left_out_and_all_of_it_is_json(report):
    figure = run_figure(report)
    json.dumps(figure, allow_nan=False)
    assert {"sparsity", "learning rate", "regrown"} <= set(curves(figure))


def test_values_that_are_not_finite_are_gaps():
    report = made(cycles=2)
    cycles = [replace(report.cycles[0], metrics={"accuracy": float("nan")}), report.cycles[1]]
    figure = run_figure(replace(report, cycles=cycles))
    assert curves(figure)["end of each cycle"]["y"][0] is None
    json.dumps(figure, allow_nan=False)


def test_names_cannot_become_markup():
    hostile = "<a href='javascript:alert(1)'>$x$</a>"
    text = json.dumps(run_figure(with_metric(made(), hostile)))
    text += json.dumps(layer_figure(made(name=hostile + "{}"), "Sparsity"))
    assert "<a" not in text
    assert "$" not in text.replace("%{", "")


class TestLayers:
    @pytest.fixture
    def report(self):
        def layers(kept):
            return [
                LayerReport("timm_model.conv1.weight", [4, 5], 20, kept, 2, empty=1, at_floor=3),
                LayerReport("fc.weight", [10, 20], 200, 10 * kept, 0, empty=0, at_floor=0),
            ]

        report = made(cycles=2, layers=0)
        cycles = [replace(cycle, layers=layers(kept)) for cycle, kept in zip(report.cycles, (5, 4), strict=True)]
        return replace(report, cycles=cycles, layers=layers(4))

    @pytest.mark.parametrize(
        ("measure", "cells"),
        [
            ("Sparsity", [[75, 80], [75, 80]]),
            ("Empty rows", [[1, 1], [0, 0]]),
            ("Rows at the floor", [[3, 3], [0, 0]]),
            ("Regrown weights", [[10, 10], [0, 0]]),
        ],
    )
    def test_have_a_cell_for_each_cycle(self, report, measure, cells):
        (heat,) = layer_figure(report, measure)["data"]
        assert (heat["x"], heat["y"]) == (["cycle 1", "cycle 2"], ["conv1", "fc"])
        assert [pytest.approx(row) for row in cells] == heat["z"]

    def test_of_an_older_report_are_those_of_its_end(self, report):
        older = replace(report, cycles=[replace(cycle, layers=[]) for cycle in report.cycles])
        (heat,) = layer_figure(older, "Sparsity")["data"]
        assert (heat["x"], heat["z"]) == (["end"], [[pytest.approx(80)], [pytest.approx(80)]])

    def test_are_not_there_before_the_first_cycle_ends(self):
        assert layer_figure(made(cycles=0, layers=0), "Sparsity") is None

    @pytest.mark.parametrize("measure", MEASURES)
    def test_of_which_something_is_not_known_are_drawn(self, measure):
        json.dumps(layer_figure(made(layers=500), measure), allow_nan=False)
