"""The figures of a run: what they show is what its report says."""

import sys
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from matplotlib.cbook import is_math_text
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image
from support.made_reports import made, without_metrics
from support.tiny import build_trainer

from hf_cyclical import PruningError, load_report
from hf_cyclical.reports import (
    LayerReport,
    NothingToDrawError,
    draw_layers,
    draw_recovery,
    draw_regrown,
    draw_run,
    plot_layers,
    plot_recovery,
    plot_regrown,
    plot_run,
)

PLOTS = [plot_run, plot_regrown, plot_recovery, plot_layers]
DRAWINGS = [draw_run, draw_regrown, draw_recovery, draw_layers]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """The report of a short run, as it leaves it."""
    folder = tmp_path_factory.mktemp("run")
    pruning = {"target_sparsity": 0.8, "cycles": 3, "delta_t": 2, "dense_updates": 6}
    trainer = build_trainer(folder, pruning, max_steps=42, eval_strategy="steps", eval_steps=4)
    trainer.train()
    trainer.report.save(folder)
    return folder


@pytest.fixture
def report(run_folder):
    return load_report(run_folder)


def points(line):
    return [[float(x), float(y)] for x, y in line.get_xydata()]


def curve(axis):
    """The points of the panel's only curve."""
    (line,) = [line for line in axis.lines if line.get_drawstyle() == "steps-post"]
    return points(line)


def texts(figure):
    """All that is written in a figure, as it is read."""
    figure.draw_without_rendering()
    shown = [text.get_text() for text in figure.findobj(Text) if text.get_visible()]
    assert not any(is_math_text(text) for text in shown)
    return [text.replace(r"\$", "$") for text in shown]


def is_svg(path):
    return ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314  we wrote it


def panels(figure):
    return {axis.get_ylabel(): axis for axis in figure.axes}


def test_the_run_has_what_the_figures_show(report):
    assert len(report.cycles) == 3
    assert report.cycles[-1].regrown > 0
    assert len(report.evaluations) > 4


@pytest.mark.parametrize(
    ("draw", "order"),
    [
        (draw_run, ["sparsity", "learning rate", "regrown (%)", "accuracy (%)"]),
        (draw_regrown, ["sparsity", "regrown (%)", "learning rate"]),
    ],
)
def test_the_curves_are_those_of_the_report(report, draw, order):
    axes = panels(draw(report))
    assert list(axes) == order
    last = report.masks[-1]
    assert curve(axes["sparsity"]) == [[0, 0], *([t, s] for t, s, _ in report.masks), [42, last[1]]]
    assert curve(axes["regrown (%)"]) == [[0, 0], *([t, 100 * r] for t, _, r in report.masks), [42, 100 * last[2]]]
    assert curve(axes["learning rate"]) == [*map(list, report.schedule), [42, report.schedule[-1][1]]]


def test_figure_1_has_the_accuracy_of_each_cycle_and_of_the_dense_model(report):
    lines = {line.get_label(): line for line in panels(draw_run(report))["accuracy (%)"].lines}
    assert points(lines["end of each cycle"]) == [[c.update, 100 * c.metrics["accuracy"]] for c in report.cycles]
    assert points(lines["every evaluation"]) == [[e["update"], 100 * e["accuracy"]] for e in report.evaluations]
    assert set(lines["dense"].get_ydata()) == {100 * report.dense["accuracy"]}


def test_cycles_are_named_above_their_own_part(report):
    figure = draw_run(report)
    middles = {text.get_text(): text.get_position()[0] for text in figure.axes[0].texts}
    assert middles == {"dense": 3, "cycle 1": 12, "cycle 2": 24, "cycle 3": 36}
    many = [text.get_text() for text in draw_run(made(cycles=40)).axes[0].texts if text.get_text()]
    assert many == ["1", "5", "9", "13", "17", "21", "25", "29", "33", "37"]


def test_a_run_that_was_stopped_ends_where_it_was_stopped():
    report = made()
    report = replace(report, cycles=report.cycles[:2], masks=report.masks[:24], evaluations=report.evaluations[:2])
    assert [axis[-1][0] for axis in map(curve, draw_regrown(report).axes)] == [24, 24, 24]


def test_recovery_sets_regrown_weights_against_accuracy(report):
    (axis,) = draw_recovery(report).axes
    expected = [[100 * c.regrown, 100 * c.metrics["accuracy"]] for c in report.cycles]
    joined, ends = axis.lines
    assert points(joined) == points(ends) == expected
    assert "regrown" in axis.get_xlabel()
    assert axis.get_ylabel() == "accuracy (%)"


@pytest.mark.parametrize("draw", [draw_run, draw_recovery])
@pytest.mark.parametrize("accuracy", [0.97, 1.0])
def test_no_axis_goes_on_above_a_perfect_accuracy(draw, accuracy):
    report = made()
    cycles = [replace(c, metrics={"accuracy": accuracy}) for c in report.cycles]
    report = replace(report, cycles=cycles, evaluations=[{"update": c.update, **c.metrics} for c in cycles])
    _, top = panels(draw(report))["accuracy (%)"].get_ylim()
    assert 100 * accuracy < top <= 101


@pytest.mark.parametrize("draw", [draw_run, draw_recovery])
def test_a_metric_that_is_in_percent_already_is_drawn_as_it_is(draw):
    cycles = [replace(c, metrics={"mAP": 40.0 + c.cycle}) for c in made().cycles]
    report = made(cycles=4, evaluations=[{"update": c.update, **c.metrics} for c in cycles])
    axis = panels(draw(replace(report, cycles=tuple(cycles), dense={"mAP": 0.5})))["mAP"]
    heights = [y for line in axis.lines if line.get_marker() == "o" for _, y in points(line)]
    assert heights == [41, 42, 43, 44]


def test_recovery_names_each_cycle_once():
    report = made()
    assert [(t.get_text(), t.xy) for t in draw_recovery(report).axes[0].texts] == [
        (str(c.cycle), (100 * c.regrown, 100 * c.metrics["accuracy"])) for c in report.cycles
    ]
    twins = replace(report, cycles=[*report.cycles, replace(report.cycles[1], cycle=5)])
    assert [text.get_text() for text in draw_recovery(twins).axes[0].texts] == ["1", "2, 5", "3", "4"]


def test_recovery_tells_cycles_on_the_way_to_the_target():
    report = made()
    report = replace(report, cycles=(replace(report.cycles[0], at_target=False), *report.cycles[1:]))
    _, ends, early = draw_recovery(report).axes[0].lines
    assert points(early) == [[1, 52]]
    assert early.get_markerfacecolor() == "white"
    assert len(points(ends)) == 3


def shown_layers(figure):
    """(name, sparsity in percent, what stands beside) of every bar, in reading order."""
    rows = []
    for axis in figure.axes:
        _, bars = axis.containers
        (beside,) = axis.child_axes
        names, kept = ([t.get_text() for t in a.get_yticklabels()] for a in (axis, beside))
        assert axis.get_ylim()[0] > axis.get_ylim()[1], "the first layer is at the top"
        rows += [(n, round(bar.get_width(), 9), k) for n, bar, k in zip(names, bars, kept, strict=True)]
    return rows


def test_layers_are_bars_in_the_models_order(report):
    assert [layer.name for layer in report.layers] == ["conv.weight", "hidden.weight", "head.weight"]
    assert shown_layers(draw_layers(report)) == [
        ("conv", round(100 * 29 / 36, 9), "80.56 %, 7 of 36"),
        ("hidden", round(100 * 1229 / 1536, 9), "80.01 %, 307 of 1,536"),
        ("head", round(100 * 57 / 72, 9), "79.17 %, 15 of 72"),  # 329 of 1,644 stay, shared out by largest remainder
    ]


@pytest.mark.parametrize(("layers", "columns"), [(1, 1), (60, 1), (61, 2), (160, 3), (500, 4)])
def test_every_layer_of_a_large_model_has_a_line_of_its_own(layers, columns):
    figure = draw_layers(made(layers, name="model.stage.{}.weight"))
    rows = shown_layers(figure)
    assert [name for name, *_ in rows] == [str(i) for i in range(layers)]
    assert len(figure.axes) == columns
    figure.draw_without_rendering()
    for axis in figure.axes:
        boxes = [label.get_window_extent() for label in axis.get_yticklabels()]
        assert all(below.y1 <= above.y0 for above, below in pairwise(boxes))
        assert axis.get_window_extent().width > 0.3 * figure.bbox.width / columns


def test_names_are_text_and_not_formulas(tmp_path):
    report = made(1, name=r"$x$_^{{\frac.weight")
    named = tuple(LayerReport(name, (10,), 10, 1, 0) for name in ("$\\bad$", "a\nb\x00--><c", "n" * 300))
    report = replace(
        report,
        layers=(*report.layers, *named),
        about={"model": "$m_{", "dataset": "d$^"},
        cycles=tuple(replace(c, metrics={"$f_1$": 1.0 * c.cycle}) for c in report.cycles),
        evaluations=(),
    )
    for draw, plot in zip(DRAWINGS, PLOTS, strict=True):
        assert "cyclical, sparsity 0.900: $m_{ on d$^" in texts(draw(report))
        assert is_svg(plot(report, tmp_path / "hostile.svg"))
    assert {r"$x$_^{\frac.weight", "$\\bad$", "a?b?--><c"} <= set(texts(draw_layers(report)))
    assert "$f_1$" in texts(draw_recovery(report))


def grey(colour):
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize("draw", [draw_run, draw_regrown, draw_recovery])
def test_lines_are_told_apart_without_colours(report, draw):
    for axis in draw(report).axes:
        lines = [line for line in axis.lines if not line.get_label().startswith("_")]
        looks = {(line.get_linestyle(), line.get_marker(), line.get_markerfacecolor()) for line in lines}
        assert len(looks) == len(lines)
        assert all(grey(line.get_color()) < 0.55 for line in axis.lines)


@pytest.mark.parametrize("plot", PLOTS)
def test_files_are_whole_images_and_always_the_same(report, tmp_path, plot):
    png, svg = plot(report, tmp_path / "a.png"), plot(report, tmp_path / "a.svg")
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    with Image.open(png) as image:
        image.load()
        assert image.width >= 700
        assert len(image.convert("L").getcolors()) > 10
    assert is_svg(svg)
    assert plot(report, tmp_path / "b.svg").read_bytes() == svg.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "a.svg", "b.svg"}


@pytest.mark.parametrize(
    ("draw", "report", "reason"),
    [
        (draw_recovery, made(cycles=1), "cycles with accuracy: 1, and comparing them needs two"),
        (draw_recovery, without_metrics(made()), "nothing was evaluated"),
        (draw_regrown, made(masks=[]), "no masks were chosen"),
        (draw_run, made(schedule=[]), "it has no updates"),
        (draw_layers, made(layers=0), "it has no layers"),
    ],
)
def test_what_is_missing_for_a_figure_is_said(draw, report, reason):
    with pytest.raises(NothingToDrawError, match=reason):
        draw(report)


def test_figure_1_needs_no_evaluation_and_no_ended_run():
    assert len(draw_run(without_metrics(made())).axes) == 3
    assert len(draw_run(made(layers=0, cycles=0, updates=10, schedule=[[0, 0.1]])).axes) == 3


def test_matplotlib_that_is_missing_is_named(report, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PruningError, match=r'matplotlib is not installed: pip install "hf_cyclical\[run\]"'):
        plot_run(report, tmp_path / "run.png")
