"""Measures what pruning costs in time and memory, on the CPU, against the goals of this project.

python scripts/benchmark.py                             # everything, about five minutes
python scripts/benchmark.py magprune apply              # some of it
python scripts/benchmark.py overhead --steps 100 --json figures.json

A time means little on a busy machine, a ratio does: what is compared takes turns (A B A B ...), every turn of both gives
a ratio, and the median of those is shown, next to the median of either. So ratio is near measured / baseline, but need
not be equal to it. It is a report and not a test: a goal that is missed does not change the exit code.
"""

import argparse
import gc
import json
import operator
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import FunctionType, ModuleType
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AutoModelForImageClassification,
    PrinterCallback,
    TimmWrapperConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from hf_cyclical import CyclicalPruningTrainer, PruningConfig
from hf_cyclical.core import TVPGD, RecoveryTracker, apply_masks_, cyclical, magprune, prunable_parameters
from hf_cyclical.data import TensorImages, ready_batch

USAGE_ERROR = 2
SPARSITY = 0.9
DELTA_T = 100  # updates between two choices of masks, as in the paper
BLOCK = 5  # updates that one trainer makes before it is the other's turn
REPETITIONS = 7


@dataclass(frozen=True)
class Row:
    """One comparison; the goal bounds its ratio, as in (">=", 0.98). Without one it is there for information."""

    what: str
    unit: str
    measured: float
    baseline: float
    ratio: float
    goal: tuple[str, float] | None = None

    @property
    def ok(self) -> bool | None:
        return self.goal and {">=": operator.ge, "<=": operator.le}[self.goal[0]](self.ratio, self.goal[1])

    def cells(self) -> list[str]:
        goal = f"{self.goal[0]} {self.goal[1]:g}" if self.goal else ""
        measured, baseline = (f"{n:,.0f}" if n >= 1000 else f"{n:.3g}" for n in (self.measured, self.baseline))
        return [
            self.what,
            self.unit,
            measured,
            baseline,
            f"{self.ratio:.3f}",
            goal,
            {True: "yes", False: "NO"}.get(self.ok, ""),
        ]


def main(argv: list[str]) -> int:
    options = parse(argv)
    figures = {}
    for name in options.names or BENCHMARKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        torch.manual_seed(0)
        rows = BENCHMARKS[name](options)
        print(table(name, rows), flush=True)
        figures[name] = [asdict(row) | {"ok": row.ok} for row in rows]
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


# overhead ------------------------------------------------------------------------------------------------------------


class Stopwatch(TrainerCallback):
    """The time of every update but the first of a run, from one end of a step to the next: all that it takes."""

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())

    @property
    def step(self) -> float:
        return median(after - before for before, after in zip(self.ends, self.ends[1:], strict=False))


def overhead(options: argparse.Namespace) -> list[Row]:
    """Updates per second of CyclicalPruningTrainer against Trainer.

    New masks come once in 100 updates, too rarely to wait for. So their cost is measured apart: the ordinary updates
    by the clock, and in the one update of each block that chooses masks only what `project` took longer than
    otherwise, as all that a choice of masks adds happens there. A hundredth of it goes on top of an ordinary update.
    """
    with tempfile.TemporaryDirectory() as folder:
        # A ramp that ends where it starts: masks of the full sparsity at the first update of a block, and no others.
        pruning = PruningConfig(target_sparsity=SPARSITY, delta_t=DELTA_T, cycles=1, ramp_fraction=0.01)
        pruned, pruned_watch = trainer(CyclicalPruningTrainer, folder, pruning=pruning)
        plain, plain_watch = trainer(Trainer, folder)
        project, pruned.project = pruned.project, lambda t: projections.append(seconds(lambda: project(t)))
        steps, choices, usual = [], [], []
        for block in range(-(-options.steps // BLOCK)):
            projections: list[float] = []
            pruned.train()
            plain.train()
            steps.append((pruned_watch.step, plain_watch.step))
            choices.append(projections[0])
            usual.append(median(projections[1:]))
            print(f"  {(block + 1) * BLOCK} updates of each", file=sys.stderr, flush=True)
    extra = max(median(choices) - median(usual), 0) / DELTA_T
    ordinary, both = [(1 / ours, 1 / theirs) for ours, theirs in steps], [(1 / (o + extra), 1 / t) for o, t in steps]
    projecting = [(1000 * (mean + extra), 1000 * ours) for mean, (ours, _) in zip(usual, steps, strict=True)]
    return [
        row("updates, 1 in 100 with new masks", "1/s", both, goal=(">=", 0.98)),
        row("updates without new masks", "1/s", ordinary),
        row("of an update, in project (1 in 100 with new masks)", "ms", projecting),
        row(
            "project with new masks, without", "ms", [(1000 * a, 1000 * b) for a, b in zip(choices, usual, strict=True)]
        ),
    ]


def trainer(kind: type[Trainer], folder: str, **more: Any) -> tuple[Trainer, Stopwatch]:
    batch = 64
    torch.manual_seed(0)
    model = AutoModelForImageClassification.from_config(TimmWrapperConfig(architecture="resnet18", num_labels=10))
    images = torch.randint(256, (BLOCK * batch, 3, 64, 64), dtype=torch.uint8)
    args = TrainingArguments(
        output_dir=folder,
        max_steps=BLOCK,
        per_device_train_batch_size=batch,
        use_cpu=True,
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    watch = Stopwatch()
    made = kind(
        model,
        args,
        train_dataset=TensorImages(images, torch.randint(10, (len(images),))),
        data_collator=ready_batch,
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), None),
        callbacks=[watch],
        **more,
    )
    made.remove_callback(PrinterCallback)
    return made, watch


# magprune, apply -----------------------------------------------------------------------------------------------------


def local_masks(options: argparse.Namespace) -> list[Row]:
    """A local choice of masks for a ResNet-50, against torch.nn.utils.prune."""
    rows = []
    for kind, share in (("Gaussian weights", 0.0), ("90 % of the weights 0", 0.9)):
        model, weights = resnet50(zeros=share)
        layers = {name: model.get_submodule(name.removesuffix(".weight")) for name in weights}
        ours = {name: torch.empty_like(w, dtype=torch.bool) for name, w in weights.items()}
        theirs: dict[str, Tensor] = {}
        turns = take_turns(
            lambda weights=weights, ours=ours: seconds(lambda: magprune(weights, SPARSITY, out=ours)),
            lambda weights=weights, layers=layers, theirs=theirs: torch_prune(layers, weights, theirs),
        )
        total = sum(w.numel() for w in weights.values()) / 1e6
        rows.append(
            row(f"local masks, {kind}", "M weights/s", [(total / a, total / b) for a, b in turns], goal=(">=", 3))
        )
        if not share:
            # Equal magnitudes at the threshold, of which either may go, are rare here but do occur.
            differing = sum(
                int(((ours[name] != theirs[name]) & (w.abs() != w.abs()[ours[name]].min())).count_nonzero())
                for name, w in weights.items()
            )
            rows.append(
                Row("masks that differ, ties aside", "weights", differing, total * 1e6, differing, goal=("<=", 0))
            )
    return rows


def torch_prune(layers: dict[str, nn.Module], weights: dict[str, Tensor], masks: dict[str, Tensor]) -> float:
    """Seconds that torch takes; afterwards the layers are as before, and `masks` are its masks."""
    taken = seconds(lambda: [prune.l1_unstructured(layer, "weight", SPARSITY) for layer in layers.values()])
    for name, layer in layers.items():
        masks[name] = layer.weight_mask.bool()
        prune.remove(layer, "weight")
        layer.weight.data = weights[name]
    return taken


def apply(options: argparse.Namespace) -> list[Row]:
    """theta * M in place for a ResNet-50, against a multiplication by masks of floats."""
    _, weights = resnet50()
    masks = magprune(weights, SPARSITY)
    factors = {name: mask.float() for name, mask in masks.items()}
    turns = take_turns(
        lambda: 1000 * seconds(lambda: apply_masks_(weights, masks)),
        lambda: 1000 * seconds(lambda: [w.mul_(factors[name]) for name, w in weights.items()]),
        repetitions=5 * REPETITIONS,
    )
    return [row("apply_masks_, mul_ by floats", "ms", turns, goal=("<=", 1.5))]


def resnet50(zeros: float = 0.0) -> tuple[nn.Module, dict[str, Tensor]]:
    """A ResNet-50 with Gaussian weights, a share of them 0, and the 25.5 million that are pruned."""
    model = timm.create_model("resnet50")
    weights = {name: p.detach() for name, p in prunable_parameters(model).items()}
    for w in weights.values():
        w.normal_().mul_(torch.rand_like(w) >= zeros)
    return model, weights


# memory --------------------------------------------------------------------------------------------------------------


def memory(options: argparse.Namespace) -> list[Row]:
    """Bytes kept between updates, and the most that one choice of masks takes on top."""
    _, weights = resnet50()
    pruner = TVPGD(weights, cyclical(SPARSITY, 4, k=2, delta_t=1))
    tracker = RecoveryTracker(pruner.masks)
    for t in range(4):  # a whole run, so that nothing is missed that comes into being on the way
        pruner.step()
        tracker.update(pruner.masks)
        if t % 2:
            tracker.end_cycle(pruner.masks)
    kept = storages(pruner, tracker)
    state = sum(size for address, size in kept.items() if address not in storages(weights))
    count = sum(w.numel() for w in weights.values())
    rows = [Row("state kept, prunable weights", "bytes", state, count, state / count, goal=("<=", 2))]
    for kind, share in (("Gaussian weights", 0.0), ("90 % of the weights 0", 0.9)):
        _, weights = resnet50(zeros=share)
        peak = peak_bytes(lambda weights=weights: magprune(weights, SPARSITY, out=pruner.masks))
        largest = max(w.nbytes for w in weights.values())
        rows.append(
            Row(f"peak of new masks, largest layer; {kind}", "bytes", peak, largest, peak / largest, goal=("<=", 3))
        )
    return rows


def storages(*roots: Any) -> dict[int, int]:
    """Size of the memory of every tensor that can be reached from the roots, by address: views count once."""
    sizes: dict[int, int] = {}
    seen: dict[int, Any] = {}
    todo: list[Any] = list(roots)
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, Tensor):
            sizes[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        # A function refers to all of its module, but keeps no more alive than what it closes over.
        todo += [thing.__closure__] if isinstance(thing, FunctionType) else gc.get_referents(thing)
    return sizes


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most bytes that `work` held at one time beyond what was there.

    From the profiler, which reports every allocation and release of torch's CPU allocator, in order. A
    TorchDispatchMode would see the results of operators only, not what they use inside (a kthvalue copies its input),
    and the memory of the process has the granularity of pages and of malloc's reserves.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or else it reports on stderr that there is no GPU
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event["args"]["Ev Idx"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


# Shared by the benchmarks --------------------------------------------------------------------------------------------

BENCHMARKS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "overhead": overhead,
    "magprune": local_masks,
    "apply": apply,
    "memory": memory,
}


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def take_turns(
    measured: Callable[[], float], baseline: Callable[[], float], repetitions: int = REPETITIONS
) -> list[tuple[float, float]]:
    """Both in turn, some times; the first turn is to warm up and does not count."""
    return [(measured(), baseline()) for _ in range(repetitions + 1)][1:]


def row(what: str, unit: str, turns: Iterable[tuple[float, float]], goal: tuple[str, float] | None = None) -> Row:
    measured, baseline = zip(*turns, strict=True)
    ratio = median(a / b for a, b in zip(measured, baseline, strict=True))
    return Row(what, unit, median(measured), median(baseline), ratio, goal)


def table(name: str, rows: list[Row]) -> str:
    lines = [["what", "unit", "measured", "baseline", "ratio", "goal", "ok"], *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join([f"{name}: {BENCHMARKS[name].__doc__.splitlines()[0]}", *map(str.rstrip, texts), ""])


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHMARKS)}; all if none is named"
    )
    parser.add_argument(
        "--steps", type=int, default=25, help="updates of each trainer in overhead, in blocks of 5 (25)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    # One line instead of the usage and a line.
    parser.error = lambda message: parser.exit(USAGE_ERROR, f"error: {message} (--help explains every argument)\n")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"benchmark {unknown[0]!r} is not known: choose from {', '.join(BENCHMARKS)}")
    if options.steps < 1:
        parser.error(f"--steps {options.steps} must be at least 1")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
