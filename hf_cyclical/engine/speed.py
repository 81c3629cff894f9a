"""How fast a model is on this processor: dense torch, the engine, and other engines where they are installed."""

import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from hf_cyclical.core import PruningError
from hf_cyclical.engine import compile_model

from .onnx_export import export_onnx

__all__ = ["Speed", "Timing", "measure_speed", "processor_name"]

OURS, TORCH = "hf_cyclical", "torch"
RIVALS = ("ONNX Runtime", "OpenVINO fp32", "OpenVINO bf16")


@dataclass(frozen=True)
class Timing:
    """How long one engine takes for a batch: the median of all rounds, in milliseconds."""

    engine: str
    batch: int
    milliseconds: float


@dataclass(frozen=True)
class Speed:
    """What was measured, and where."""

    processor: str
    threads: int
    shape: tuple[int, ...]
    timings: tuple[Timing, ...]
    layers: tuple[dict[str, Any], ...]
    torch_operations: tuple[str, ...]
    batches_in_torch: tuple[int, ...] = ()

    def milliseconds(self, engine: str, batch: int) -> float | None:
        return next((t.milliseconds for t in self.timings if (t.engine, t.batch) == (engine, batch)), None)

    def ratio(self, batch: int, rival: str) -> float | None:
        """How many times as fast as another engine ours is."""
        ours, other = self.milliseconds(OURS, batch), self.milliseconds(rival, batch)
        return None if ours is None or other is None else other / ours

    def sentence(self) -> str:
        """What a model card says: figures with the processor that they come from."""
        batch = min(t.batch for t in self.timings)
        parts = [f"{ratio:.1f} times as fast as {rival}" for rival in (TORCH, *RIVALS[:2])
                 if (ratio := self.ratio(batch, rival)) is not None]  # fmt: skip
        size, threads = " x ".join(map(str, self.shape)), f"{self.threads} thread{'s' * (self.threads > 1)}"
        first = f"With `hf_cyclical.compile` this model takes {self.milliseconds(OURS, batch):.3g} ms"
        how = f"for a batch of {batch} ({size} pixels, {threads}, {self.processor})"
        return f"{first} {how}: {', '.join(parts)}, which run it dense."

    def table(self) -> str:
        """Milliseconds of all engines, and which path each layer takes."""
        lines = [["engine", "batch", "ms", "ours is faster by"]]
        for t in self.timings:
            ratio = self.ratio(t.batch, t.engine)
            lines.append([t.engine, str(t.batch), f"{t.milliseconds:.3f}", f"{ratio:.2f}"])
        layers = [["layer", "path", "why"], *([row["layer"], row["path"], row["why"]] for row in self.layers)]
        head = f"{self.processor}, {self.threads} thread{'s' * (self.threads > 1)}, images of {self.shape}"
        operations = ", ".join(dict.fromkeys(self.torch_operations)) or "none"
        notes = [f"operations left to torch: {operations}"]
        notes += [f"batch of {n}: torch is faster than the engine, so torch runs it" for n in self.batches_in_torch]
        return "\n".join([head, "", _aligned(lines), "", _aligned(layers), "", *notes])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_speed(
    model: nn.Module,
    shape: tuple[int, int, int],
    *,
    batches: Sequence[int] = (1, 32),
    threads: int = 1,
    rounds: int = 15,
    tell: Callable[[str], None] = lambda text: None,
) -> Speed:
    """Measure a pruned model with every engine that is installed; all take turns, so that a busy machine is fair.

    Args:
        model: The model.
        shape: Channels, height and width of its images.
        batches: How many images at once.
        threads: Of every engine. With one, what is measured is the time of the processor, else that of the clock.
        rounds: How often each engine runs.
        tell: Gets lines of progress.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        tell("compiling ...")
        fast = compile_model(model, num_threads=threads)
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            runs = {TORCH: fast.model, OURS: fast, **_rivals(fast.model, Path(folder), shape, threads, tell)}
            timings = []
            for batch in batches:
                tell(f"batch of {batch}: {', '.join(runs)} ...")
                timings += _take_turns(runs, torch.randn(batch, *shape), rounds, threads)
        layers = tuple(asdict(choice) for choice in fast.choices(*shape))
        left = tuple(fast.torch_operations(*shape)), tuple(n for n in batches if fast.in_torch(n, *shape))
        return Speed(processor_name(), threads, shape, tuple(timings), layers, *left)
    finally:
        torch.set_num_threads(before)


def _take_turns(runs: dict[str, Callable[[Tensor], Any]], images: Tensor, rounds: int, threads: int) -> list[Timing]:
    clock = time.process_time if threads == 1 else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    repeats = dict.fromkeys(runs, 1)
    for number in range(rounds + 2):
        for name, run in runs.items():
            start = clock()
            for _ in range(repeats[name]):
                run(images)
            taken = (clock() - start) / repeats[name]
            if number == 1:  # the first one warms up
                repeats[name] = max(1, min(100, int(2e-3 / max(taken, 1e-6))))
            if number > 1:
                seconds[name].append(taken)
    return [Timing(name, len(images), 1e3 * median(values)) for name, values in seconds.items()]


def _rivals(
    model: nn.Module, folder: Path, shape: tuple[int, int, int], threads: int, tell: Callable[[str], None]
) -> dict[str, Callable[[Tensor], Any]]:
    """Other engines that are installed, by name."""
    if not all(find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript")):
        tell('ONNX Runtime and OpenVINO are left out: pip install "hf_cyclical[onnx,openvino]"')
        return {}
    path = folder / "model.onnx"
    tell("exporting to ONNX ...")
    try:
        export_onnx(model, path, shape)
    except PruningError as error:
        tell(f"other engines are left out: {error}")
        return {}
    found = {RIVALS[0]: _onnx_runtime(path, threads)}
    if find_spec("openvino"):
        for name, precision in zip(RIVALS[1:], ("f32", "bf16"), strict=True):
            found[name] = _openvino(path, threads, precision)
    return found


def _onnx_runtime(path: Path, threads: int) -> Callable[[Tensor], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images.numpy()})


def _openvino(path: Path, threads: int, precision: str) -> Callable[[Tensor], Any]:
    import openvino

    core, requests = openvino.Core(), {}
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}

    def run(images: Tensor) -> Any:
        if len(images) not in requests:  # for one batch size each: a dynamic one is slower
            read = core.read_model(str(path))
            read.reshape(list(images.shape))
            requests[len(images)] = core.compile_model(read, "CPU", settings).create_infer_request()
        return requests[len(images)].infer({0: images.numpy()})

    return run


def processor_name() -> str:
    """The processor as its maker calls it, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _aligned(lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(text.rstrip() for text in texts)
