"""The page itself, with Gradio."""

import json
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components.plot import PlotData
from PIL import Image

from hf_cyclical.core import PruningError, printable
from hf_cyclical.formats import CONFIG, WEIGHTS

from . import masks
from .card import card_html
from .figures import MEASURES, layer_figure, run_figure
from .job import RUNNING, Job, Snapshot
from .markup import note
from .predictions import DENSE, PRUNED, Predictor
from .summary import cycle_table, head, time_table

_SECONDS = 5  # between two looks at the folder
_LEGEND = (("kept", masks.KEPT), ("pruned", masks.PRUNED), ("at the floor", masks.FLOOR), ("empty row", masks.EMPTY))
_MASK_WORDS = "A square for each weight: filters and outputs go down, their inputs across, and a kernel is a tile."


_DROP = "Drop an image above to see what the models say of it, and how long they take."
_DRAWN = {"format": "png", "buttons": ["download", "fullscreen"]}
_UPLOADED = {"type": "pil", "sources": ["upload"], "buttons": ["fullscreen"]}


class Page:
    """What the page shows of a job; every function here is one of its callbacks.

    Args:
        job: The job.
        dense: A folder or Hub id of the dense model to compare with; None if there is none.
    """

    def __init__(self, job: Job, dense: str | None = None) -> None:
        self.job, self.dense = job, dense
        self._predictor: tuple[tuple[object, ...], Predictor] | None = None

    def build(self) -> gr.Blocks:
        """The page, to be mounted."""
        with gr.Blocks(title=f"hf-cyclical: {self.job.folder.resolve().name}", analytics_enabled=False) as page:
            seen, timer = gr.State(None), gr.Timer(_SECONDS)
            top = gr.HTML(elem_classes="show-head", elem_id="head")
            with gr.Tab("Run", id="run"):
                run = gr.Plot(show_label=False, elem_id="run-figure")
                cycles = gr.HTML()
            with gr.Tab("Layers", id="layers"):
                measure = gr.Radio([*MEASURES], value=next(iter(MEASURES)), show_label=False, elem_id="measure")
                layers, no_layers = gr.Plot(show_label=False, elem_id="layer-figure"), gr.HTML()
            with gr.Tab("Masks", id="masks"):
                layer = gr.Dropdown([], label="Layer", elem_id="layer")
                gr.HTML(_legend())
                caption = gr.HTML(elem_id="mask-caption")
                mask = gr.Image(show_label=False, elem_id="mask", interactive=False, height=640, **_DRAWN)
            with gr.Tab("Predictions", id="predictions"):
                with gr.Row(equal_height=True):
                    image = gr.Image(label="Drop an image here", elem_id="image", height=340, **_UPLOADED)
                    dense = gr.Label(label="Dense model", elem_id="dense", visible=self.dense is not None)
                    pruned = gr.Label(label="Pruned model", elem_id="pruned")
                times = gr.HTML(note(_DROP))
                gr.HTML(note(self._how_to_compare()), visible=self.dense is None, elem_id="no-dense")
            with gr.Tab("Card", id="card"):
                card = gr.HTML(elem_id="card")
            shown = [seen, top, run, cycles, layers, no_layers, layer, mask, caption, card]
            quiet = {"show_progress": "hidden", "api_visibility": "private"}
            page.load(self.renew, [measure, layer], shown, **quiet)
            timer.tick(self.refresh, [seen, measure, layer], shown, **quiet)
            measure.input(self.draw_layers, measure, [layers, no_layers], **quiet)
            layer.input(self.draw_mask, layer, [mask, caption], **quiet)
            image.change(self.predict, image, [pruned, dense, times], api_visibility="private")
        return page

    def refresh(self, seen: object, measure: str, layer: str | None) -> Any:
        """Everything, if the job has changed since it was seen; else nothing."""
        return gr.skip() if seen == _stamp(self.job) else self.renew(measure, layer)

    def renew(self, measure: str, layer: str | None) -> list[Any]:
        """Everything as it is now."""
        stamp, now = _stamp(self.job), self.job.look()
        names, problem = self._layer_names(now)
        chosen = layer if layer in names else _first(names)
        picture, caption = self._mask(now, chosen) if chosen else (gr.Image(None, visible=False), note(problem))
        run = None if now.report is None else _plot(run_figure(now.report))
        choices = gr.Dropdown(choices=names, value=chosen)
        tables = [cycle_table(now.report), *self._layers(now, measure)]
        return [stamp, head(self.job, now), run, *tables, choices, picture, caption, card_html(self.job.folder)]

    def draw_layers(self, measure: str) -> tuple[Any, Any]:
        """The layers over the cycles."""
        return self._layers(self.job.look(), measure)

    def draw_mask(self, layer: str) -> tuple[Any, str]:
        """The mask of a layer."""
        return self._mask(self.job.look(), layer)

    def predict(self, image: Image.Image | None) -> tuple[Any, Any, str]:
        """What the models say of an image."""
        if image is None:
            return None, None, note(_DROP)
        try:
            found = self._loaded(self.job.look()).predict(image)
        except (PruningError, OSError) as error:
            return None, None, note(str(error))
        return found.scores[PRUNED], found.scores.get(DENSE), time_table(found)

    def _loaded(self, now: Snapshot) -> Predictor:
        if now.model is None:
            raise PruningError(_without_weights(now))
        found = now.model, _stamp(self.job)  # a folder may have another run's model after as many updates
        if self._predictor is None or self._predictor[0] != found:
            self._predictor = found, Predictor(now.model, self.dense)
        return self._predictor[1]

    def _layers(self, now: Snapshot, measure: str) -> tuple[Any, Any]:
        figure = None if now.report is None else layer_figure(now.report, measure)
        if figure is None:
            return gr.Plot(None, visible=False), note("No cycle has ended yet: layers are counted at the end of each.")
        few = "" if now.report.cycles and now.report.cycles[0].layers else "This report has its layers at the end only."
        return gr.Plot(_plot(figure), visible=True), note(few) if few else ""

    def _layer_names(self, now: Snapshot) -> tuple[list[str], str]:
        if now.model is None:
            return [], _without_weights(now)
        try:
            return masks.mask_layers(now.model, now.report), "The model has no layers that were pruned."
        except (PruningError, OSError) as error:
            return [], printable(str(error))

    def _mask(self, now: Snapshot, layer: str) -> tuple[Any, str]:
        floor = now.report.config.get("row_floor") if now.report else None
        try:
            drawn = masks.mask_picture(now.model, layer, floor if isinstance(floor, int) else 0)
        except (PruningError, OSError) as error:
            return gr.Image(None, visible=False), note(str(error))
        return gr.Image(drawn.image, visible=True), note(f"{layer}: {drawn.caption} {_MASK_WORDS}")

    def _how_to_compare(self) -> str:
        report = self.job.look().report
        base = report and (report.about.get("base_model") or report.about.get("model"))
        from_it = f" The report says that it started from {base}." if base else ""
        return (
            f"To compare with the dense model, start hf-cyclical show with --dense and its folder or Hub id.{from_it}"
        )


def _without_weights(now: Snapshot) -> str:
    if now.state == RUNNING:
        return "There are no weights yet: they come with the first checkpoint."
    return f"There is no {CONFIG} with {WEIGHTS} in the folder, which masks and predictions need."


def _stamp(job: Job) -> str:
    return repr(job.stamp())


def _plot(figure: dict[str, Any]) -> PlotData:
    return PlotData(type="plotly", plot=json.dumps(figure, allow_nan=False))


def _first(names: list[str]) -> str | None:
    """The second layer if there are several: the first one is often of the few inputs of an image."""
    return (names[1:] or names or [None])[0]


def _legend() -> str:
    parts = (f"<span><i style='background: rgb{colour}'></i>{name}</span>" for name, colour in _LEGEND)
    return f"<div class='legend'>{''.join(parts)}</div>"


def style() -> str:
    """The style sheet."""
    return Path(__file__).with_name("style.css").read_text(encoding="utf-8")
