"""Measures what pruning costs in time and memory, on the CPU, against the goals of this project.

python scripts/benchmark.py                                  # everything, about five minutes
python scripts/benchmark.py magprune apply --json FILE       # some of it, and into a file too

A time means little on a busy machine, a ratio does. So what is compared takes turns (A B A B ...), each turn of both
gives a ratio measured / baseline, and the tables have the median of these, next to the medians of both.
This is a report and not a test: the exit code does not depend on the goals.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from types import FunctionType, ModuleType
from typing import Any

import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.profiler import ProfilerActivity, profile

from hf_cyclical import CyclicalPruningTrainer, PruningConfig
from hf_cyclical.core import TVPGD, RecoveryTracker, apply_masks_, cyclical, magprune, prunable_parameters
from hf_cyclical.data import TensorImages, ready_batch

USAGE_ERROR = 2
SPARSITY = 0.9
DELTA_T = 100  # updates between two choices of masks, as in the paper
BLOCK = 5  # updates that one trainer makes before it is the other's turn
WEIGHTS = {"Gaussian weights": 0.0, "90 % of them zero": 0.9}


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
        relation, bound = self.goal or ("", 0)
        return {">=": self.ratio >= bound, "<=": self.ratio <= bound}.get(relation)

    def cells(self) -> list[str]:
        measured, baseline = (f"{n:,.0f}" if n >= 1000 else f"{n:.3g}" for n in (self.measured, self.baseline))
        goal = f"{self.goal[0]} {self.goal[1]:g}" if self.goal else ""
        ok = {True: "yes", False: "NO", None: ""}[self.ok]
        return [self.what, self.unit, measured, baseline, f"{self.ratio:.3f}", goal, ok]


def main(argv: list[str]) -> int:
    options = parse(argv)
    torch.set_num_threads(options.threads)
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


class Stopwatch(transformers.TrainerCallback):
    """Times the updates of a run from the end of one to the end of the next, so all but the first."""

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.ends.append(time.perf_counter())

    @property
    def update(self) -> float:
        return median(after - before for before, after in zip(self.ends, self.ends[1:], strict=False))


def overhead(options: argparse.Namespace) -> list[Row]:
    """CyclicalPruningTrainer against Trainer: ResNet-18, images of 64x64, batches of 64, masks chosen 1 in 100 updates.

    That is too rare to wait for, so it is measured apart: ordinary updates by the clock, and in the first update of
    each block, which chooses masks, by how much `project` takes longer than in the others, as all that a choice of
    masks adds happens in there. A hundredth of that is added to the time of an ordinary update.
    """
    with tempfile.TemporaryDirectory() as folder:
        # A ramp that ends where it starts: masks of the full sparsity at the first update of a block, and no others.
        pruning = PruningConfig(target_sparsity=SPARSITY, delta_t=DELTA_T, cycles=1, ramp_fraction=0.01)
        pruned, pruned_watch = make_trainer(CyclicalPruningTrainer, folder, pruning=pruning)
        plain, plain_watch = make_trainer(transformers.Trainer, folder)
        projections: list[float] = []
        project, pruned.project = pruned.project, lambda t: projections.append(seconds(lambda: project(t)))
        updates = []
        for _ in range(-(-options.steps // BLOCK)):
            pruned.train()
            plain.train()
            updates.append((pruned_watch.update, plain_watch.update))
            print(f"  {len(updates) * BLOCK} updates of each", file=sys.stderr, flush=True)
    ordinary = [median(projections[i + 1 : i + BLOCK]) for i in range(0, len(projections), BLOCK)]
    extra = (median(projections[::BLOCK]) - median(ordinary)) / DELTA_T
    in_project = [(own + extra, update + extra) for own, (update, _) in zip(ordinary, updates, strict=True)]
    speeds = [(1 / (ours + extra), 1 / theirs) for ours, theirs in updates]
    return [
        row("pruning / plain, new masks 1 in 100", "updates/s", speeds, (">=", 0.98)),
        row("pruning / plain, no new masks", "updates/s", [(1 / ours, 1 / theirs) for ours, theirs in updates]),
        row("project() / pruning, new masks 1 in 100", "s per update", in_project),
        row("project() with / without new masks", "s", zip(projections[::BLOCK], ordinary, strict=True)),
    ]


def make_trainer(kind: type[transformers.Trainer], folder: str, **more: Any) -> tuple[transformers.Trainer, Stopwatch]:
    torch.manual_seed(0)
    config = transformers.TimmWrapperConfig(architecture="resnet18", num_labels=10)
    model = transformers.AutoModelForImageClassification.from_config(config)
    batch = 64
    images = torch.randint(256, (batch * BLOCK, 3, 64, 64), dtype=torch.uint8)
    quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "remove_unused_columns": False}
    watch = Stopwatch()
    trainer = kind(
        model,
        transformers.TrainingArguments(folder, batch, max_steps=BLOCK, use_cpu=True, **quiet),
        train_dataset=TensorImages(images, torch.randint(10, (len(images),))),
        data_collator=ready_batch,
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), None),
        callbacks=[watch],
        **more,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer, watch


def choose_masks(options: argparse.Namespace) -> list[Row]:
    """Speed of a choice of local masks for a ResNet-50."""
    rows = []
    for kind, zeros in WEIGHTS.items():
        model, weights = resnet50(zeros)
        count = sum(w.numel() for w in weights.values())
        layers = {name: model.get_submodule(name.removesuffix(".weight")) for name in weights}
        ours = {name: torch.empty_like(w, dtype=torch.bool) for name, w in weights.items()}
        theirs: dict[str, Tensor] = {}
        choose = partial(magprune, weights, SPARSITY, out=ours)
        turns = take_turns(partial(seconds, choose), partial(torch_prune, layers, weights, theirs), 7)
        speeds = [(count / 1e6 / a, count / 1e6 / b) for a, b in turns]
        rows.append(row(f"magprune / l1_unstructured, {kind}", "M weights/s", speeds, (">=", 3)))
        if not zeros:  # where many weights are equal, torch drops any of them; even here a tie at the threshold occurs
            tied = {name: w.abs() == w.abs()[ours[name]].min() for name, w in weights.items()}
            differ = sum(int(((ours[name] ^ theirs[name]) & ~tied[name]).count_nonzero()) for name in weights)
            rows.append(Row("masks that differ / all, ties aside", "weights", differ, count, differ / count, ("<=", 0)))
    return rows


def torch_prune(layers: dict[str, nn.Module], weights: dict[str, Tensor], masks: dict[str, Tensor]) -> float:
    """Seconds that torch takes; afterwards the layers are as before, and `masks` holds what it chose."""
    taken = seconds(lambda: [prune.l1_unstructured(layer, "weight", SPARSITY) for layer in layers.values()])
    for name, layer in layers.items():
        masks[name] = layer.weight_mask.bool()
        prune.remove(layer, "weight")
        layer.weight.data = weights[name]
    return taken


def apply(options: argparse.Namespace) -> list[Row]:
    """Time to apply the masks of a ResNet-50 in place."""
    _, weights = resnet50()
    masks = magprune(weights, SPARSITY)
    factors = {name: mask.float() for name, mask in masks.items()}
    ours, theirs = partial(apply_masks_, weights, masks), lambda: [w.mul_(factors[name]) for name, w in weights.items()]
    turns = take_turns(partial(seconds, ours), partial(seconds, theirs), 51)
    return [row("apply_masks_ / mul_ by masks of floats", "s", turns, ("<=", 1.5))]


def resnet50(zeros: float = 0.0) -> tuple[nn.Module, dict[str, Tensor]]:
    """A ResNet-50 with Gaussian weights, a share of them zero, and the 25.5 million that are pruned."""
    model = timm.create_model("resnet50")
    weights = {name: p.detach() for name, p in prunable_parameters(model).items()}
    for w in weights.values():
        w.normal_().mul_(torch.rand_like(w) >= zeros)
    return model, weights


def memory(options: argparse.Namespace) -> list[Row]:
    """Bytes for a ResNet-50: what is kept between updates, and the most that a choice of masks takes on top of that."""
    _, weights = resnet50()
    pruner = TVPGD(weights, cyclical(SPARSITY, 4, k=1, delta_t=1))
    tracker = RecoveryTracker(pruner.masks)
    for _ in range(4):  # a whole run: what is made on the way counts too
        pruner.step()
        tracker.update(pruner.masks)
    tracker.end_cycle(pruner.masks)
    not_ours = storages(weights)
    kept = sum(size for address, size in storages(pruner, tracker).items() if address not in not_ours)
    count, largest = sum(w.numel() for w in weights.values()), max(w.nbytes for w in weights.values())
    rows = [Row("kept / prunable weights", "bytes", kept, count, kept / count, ("<=", 2))]
    for kind, zeros in WEIGHTS.items():
        fresh = resnet50(zeros)[1]
        peak = peak_bytes(partial(magprune, fresh, SPARSITY, out=pruner.masks))
        rows.append(Row(f"peak / largest layer, {kind}", "bytes", peak, largest, peak / largest, ("<=", 3)))
    return rows


def storages(*roots: Any) -> dict[int, int]:
    """Bytes of every tensor that can be reached from the roots, by address, so that views count once."""
    sizes, seen, todo = {}, {}, list(roots)
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType):
            continue
        seen[id(thing)] = thing
        if isinstance(thing, Tensor):
            sizes[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        # A function also refers to all the globals of its module, which are not its own.
        todo += [thing.__closure__] if isinstance(thing, FunctionType) else gc.get_referents(thing)
    return sizes


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most bytes that `work` held at any time, beyond those held before.

    From the profiler, which sees every allocation and release of torch's CPU allocator in order. A TorchDispatchMode
    sees the results of operators but not what they need inside (kthvalue copies its input), and the memory of the
    process also has what malloc keeps in reserve.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would say that it finds no GPU
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    events.sort(key=lambda event: event["args"]["Ev Idx"])
    return max(accumulate((event["args"]["Bytes"] for event in events), initial=0))


BENCHMARKS = {"overhead": overhead, "magprune": choose_masks, "apply": apply, "memory": memory}


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def take_turns(measured: Callable[[], float], baseline: Callable[[], float], times: int) -> list[tuple[float, float]]:
    """Both in turn; a first time does not count, as it warms up."""
    return [(measured(), baseline()) for _ in range(times + 1)][1:]


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
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}; all if none is named")
    parser.add_argument("--steps", type=int, default=75, help="updates of each trainer in overhead (75)")
    # With more, every operation waits for the core that other jobs keep busy: twenty times longer, for the short ones.
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1); more only if nothing else runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, too")
    parser.error = lambda message: parser.exit(USAGE_ERROR, f"error: {message} (--help explains every argument)\n")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"benchmark {unknown[0]!r} is not known: choose from {', '.join(BENCHMARKS)}")
    if min(options.steps, options.threads) < 1:
        parser.error(f"--steps {options.steps} and --threads {options.threads} must be at least 1")
    if options.json and (options.json.is_dir() or not options.json.parent.is_dir()):
        parser.error(f"--json {options.json} cannot be written: name a file in an existing folder")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
