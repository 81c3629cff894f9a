"""The pruned model and the dense one on an image, and how long they take."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch
from PIL import Image
from torch import Tensor, nn

from hf_cyclical.core import PruningError, printable
from hf_cyclical.engine import OURS, compile_model, processor_name
from hf_cyclical.models import class_names, image_processor, load, pixels_of

TOP = 5
DENSE, PRUNED = "dense", "pruned"
_ROUNDS, _SECONDS = 15, 1.0  # of measuring, whichever ends first


@dataclass(frozen=True)
class Predictions:
    """What the models say of an image.

    Attributes:
        scores: For `pruned`, and for `dense` if there is a dense model, the most likely classes.
        milliseconds: For (model, engine) the median time of a forward pass.
        notes: What there is to say about it.
    """

    scores: dict[str, dict[str, float]]
    milliseconds: dict[tuple[str, str], float]
    notes: list[str]


class Predictor:
    """A pruned model, and a dense one to compare with, loaded with the limits for strangers' files.

    Args:
        model: The folder of the pruned model.
        dense: A folder or Hub id, from the command line; None if there is no dense model.

    Raises:
        PruningError: If one of them cannot be loaded.
    """

    def __init__(self, model: Path, dense: str | None = None) -> None:
        self.sources: dict[str, str | Path] = {PRUNED: model} | ({DENSE: dense} if dense else {})
        self.models = {name: load(source) for name, source in self.sources.items()}
        self.processors = {name: image_processor(self.sources[name], None, self.models[name]) for name in self.sources}
        self.fast, self.without_engine = self._compiled()

    def _compiled(self) -> tuple[nn.Module | None, str | None]:
        """The pruned model on the engine, or why it is not."""
        if find_spec("llvmlite") is None:
            return None, 'The engine for sparse models is not installed: pip install "hf_cyclical[fast]".'
        try:
            return compile_model(self.models[PRUNED]), None
        except PruningError as error:
            return None, f"The engine does not take this model: {printable(str(error))}."

    @torch.inference_mode()
    def predict(self, image: Image.Image) -> Predictions:
        """What the models say of an image, and how long each took; engines take turns.

        Raises:
            PruningError: If the image processor of a model cannot be used.
        """
        image = image.convert("RGB")
        pixels = {name: pixels_of(self.sources[name], self.processors[name], image) for name in self.models}
        runs = {(name, "torch"): _call(self.models[name], pixels[name]) for name in reversed(self.models)}
        notes = [] if self.without_engine is None else [self.without_engine]
        if self.fast is not None:
            try:
                self.fast(pixels[PRUNED])
                runs[PRUNED, OURS] = _call(self.fast, pixels[PRUNED])
            except PruningError as error:
                notes.append(f"The engine does not take this model: {printable(str(error))}.")
        scores = {}
        for name in self.models:
            best = runs.get((name, OURS), runs[name, "torch"])()
            scores[name] = self._named(name, torch.softmax(getattr(best, "logits", best)[0].float(), -1))
        threads = torch.get_num_threads()
        how = f"Forward passes of one image in turn, the median; {threads} thread{'s' if threads > 1 else ''}"
        return Predictions(scores, _median_times(runs), [f"{how}, {printable(processor_name())}.", *notes])

    def _named(self, name: str, scores: Tensor) -> dict[str, float]:
        names = [printable(each) for each in class_names(self.sources[name], None, len(scores))]
        twice = {each for each, count in Counter(names).items() if count > 1}
        best = scores.topk(min(TOP, len(scores)))
        return {
            f"{names[i]} ({i})" if names[i] in twice else names[i]: value
            for value, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        }


def _call(model: nn.Module, pixels: Tensor) -> Callable[[], object]:
    return lambda: model(pixels)


def _median_times(runs: dict[tuple[str, str], Callable[[], object]]) -> dict[tuple[str, str], float]:
    """Milliseconds of each. With one thread it is that thread's own time, so that other jobs matter little."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    for run in runs.values():
        run()
    times: dict[tuple[str, str], list[float]] = {name: [] for name in runs}
    start = time.perf_counter()
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            before = clock()
            run()
            times[name].append(1000 * (clock() - before))
        if time.perf_counter() - start > _SECONDS:
            break
    return {name: median(values) for name, values in times.items()}
