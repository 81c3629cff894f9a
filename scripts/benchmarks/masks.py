"""The time and memory that masks take, on the weights of a ResNet-50."""

import argparse
import gc
import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.profiler import ProfilerActivity, profile

from hf_cyclical.core import TVPGD, RecoveryTracker, apply_masks_, cyclical, magprune, prunable_parameters

from .common import SPARSITY, Row, ratio, row, seconds, take_turns

CHANNELS_LAST = {"channels innermost": {"channels_last": True}}  # which torch.nn.utils.prune does not take
WEIGHTS = {"Gaussian weights": {}, "90 % of them zero": {"zeros": 0.9}}
FLOORED = {"a floor of the rows": {}, "a floor that a tenth of the rows need": {"small": 0.1}}


def choose_masks(options: argparse.Namespace) -> list[Row]:
    """Speed of a choice of local masks for a ResNet-50."""
    rows = []
    for kind, made in (WEIGHTS | FLOORED).items():
        model, weights = resnet50(**made)
        count = sum(w.numel() for w in weights.values())
        layers = {name: model.get_submodule(name.removesuffix(".weight")) for name in weights}
        ours = {name: torch.empty_like(w, dtype=torch.bool) for name, w in weights.items()}
        theirs: dict[str, Tensor] = {}
        choose = partial(magprune, weights, SPARSITY, row_floor=int(kind in FLOORED), out=ours)
        turns = take_turns(partial(seconds, choose), partial(torch_prune, layers, weights, theirs), 7)
        speeds = [(count / 1e6 / a, count / 1e6 / b) for a, b in turns]
        rows.append(row(f"magprune / l1_unstructured, {kind}", "M weights/s", speeds, (">=", 3)))
        if kind == "Gaussian weights":
            # Where many weights are equal, torch drops any of them; even here a tie at the threshold occurs.
            tied = {name: w.abs() == w.abs()[ours[name]].min() for name, w in weights.items()}
            differ = sum(int(((ours[name] ^ theirs[name]) & ~tied[name]).count_nonzero()) for name in weights)
            rows.append(ratio("masks that differ / all, ties aside", "weights", differ, count, ("<=", 0)))
    return [*rows, choose_in_layouts()]


def choose_in_layouts() -> Row:
    measured, baseline = (resnet50(channels_last=innermost)[1] for innermost in (True, False))
    count = sum(w.numel() for w in measured.values())
    masks = [{name: torch.empty_like(w, dtype=torch.bool) for name, w in x.items()} for x in (measured, baseline)]
    choices = [partial(magprune, x, SPARSITY, out=out) for x, out in zip((measured, baseline), masks, strict=True)]
    speeds = [(count / 1e6 / a, count / 1e6 / b) for a, b in take_turns(*(partial(seconds, c) for c in choices), 7)]
    return row("magprune, channels innermost / contiguous", "M weights/s", speeds, (">=", 0.9))


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
    rows = []
    for kind, made in {"Gaussian weights": {}, **CHANNELS_LAST}.items():
        _, weights = resnet50(**made)
        masks = magprune(weights, SPARSITY)
        factors = {name: mask.float() for name, mask in masks.items()}
        ours, theirs = partial(apply_masks_, weights, masks), partial(multiply, weights, factors)
        turns = take_turns(partial(seconds, ours), partial(seconds, theirs), 51)
        rows.append(row(f"apply_masks_ / mul_ by masks of floats, {kind}", "s", turns, ("<=", 1.5)))
    return rows


def multiply(weights: dict[str, Tensor], factors: dict[str, Tensor]) -> None:
    for name, w in weights.items():
        w.mul_(factors[name])


def resnet50(
    zeros: float = 0.0, small: float = 0.0, channels_last: bool = False
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A ResNet-50 with Gaussian weights, of which the 25.5 million are returned that are pruned.

    Some weights are zero, and all of some rows too small to stay.
    """
    model = timm.create_model("resnet50")
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    weights = {name: p.detach() for name, p in prunable_parameters(model).items()}
    for w in weights.values():
        w.normal_().mul_(torch.rand_like(w) >= zeros)
        w[: round(small * len(w))] *= 1e-5
    return model, weights


def memory(options: argparse.Namespace) -> list[Row]:
    """Bytes for a ResNet-50: what is kept between updates, and the most that a choice of masks takes on top of that."""
    _, weights = resnet50()
    pruner = TVPGD(weights, cyclical(SPARSITY, 4, k=1, delta_t=1))
    tracker = RecoveryTracker(pruner.masks)
    for t in range(4):  # a whole run: what is made on the way counts too
        pruner.step(t)
        tracker.update(pruner.masks)
    tracker.end_cycle(pruner.masks)
    not_ours = storages(weights)
    kept = sum(size for address, size in storages(pruner, tracker).items() if address not in not_ours)
    count, largest = sum(w.numel() for w in weights.values()), max(w.nbytes for w in weights.values())
    rows = [ratio("kept / prunable weights", "bytes", kept, count, ("<=", 2))]
    for kind, made in (WEIGHTS | CHANNELS_LAST | FLOORED).items():
        fresh = resnet50(**made)[1]
        masks = {name: torch.empty_like(w, dtype=torch.bool) for name, w in fresh.items()}
        peak = peak_bytes(partial(magprune, fresh, SPARSITY, row_floor=int(kind in FLOORED), out=masks))
        rows.append(ratio(f"peak / largest layer, {kind}", "bytes", peak, largest, ("<=", 3)))
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
