"""Algorithm 1 of the paper as a naive loop: the oracle of the tests, which shares no code with the package."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


def magprune(params: dict[str, Tensor], s: float, share: str = "uniform", row_floor: int = 0) -> dict[str, Tensor]:
    """Drop the round(s * n) first weights of a stable sort by |w| or score, sparing the last (largest) of every layer.

    One is spared in each layer, and the `row_floor` largest of every row.
    """
    masks = {}
    known = {"uniform": shares, "erk": erk_shares}
    stay = known[share](params, s, row_floor) if share in known else {}
    for names in [[name] for name in params] if stay else [list(params)]:
        layers = [params[name].detach().flatten().abs().double() for name in names]
        tops = [row_tops(params[name].detach(), row_floor) for name in names]
        order = lamp_order(layers, tops) if share == "lamp" else torch.cat(layers).argsort(stable=True)
        spared = torch.cat([spare(w, top) for w, top in zip(layers, tops, strict=True)])
        keep = torch.ones(len(order), dtype=torch.bool)
        k = len(order) - stay[names[0]] if stay else round(s * len(order))
        keep[order[~spared[order]][:k]] = False
        for name, mask in zip(names, keep.split([len(w) for w in layers]), strict=True):
            masks[name] = mask.view(params[name].shape)
    return masks


def spare(w: Tensor, top: Tensor) -> Tensor:
    """The weights that a rank over several layers may not take: the tops of the rows, or the largest without any."""
    if top.any():
        return top
    spared = top.clone()
    spared[w.argsort(stable=True)[-1]] = True
    return spared


def row_tops(w: Tensor, n: int) -> Tensor:
    """Which weights, flat, are among the `n` last of a stable sort of their row by |w|; none of a vector."""
    if w.dim() < 2:
        return torch.zeros(len(w), dtype=torch.bool)
    rows = w.reshape(len(w), -1)
    top = torch.zeros_like(rows, dtype=torch.bool)
    for i, row in enumerate(rows):
        order = row.abs().argsort(stable=True)
        top[i, order[max(len(order) - n, 0) :]] = True
    return top.flatten()


def shares(params: dict[str, Tensor], s: float, row_floor: int) -> dict[str, int]:
    """How many weights each layer keeps by equal shares; with a floor, by giving out one weight after the other."""
    sizes = {name: p.numel() for name, p in params.items()}
    if not row_floor:
        return {name: n - round(s * n) for name, n in sizes.items()}
    total = sum(sizes.values())
    stay = total - round(s * total)
    held = {name: max(int(row_tops(p.detach(), row_floor).sum()), 1) for name, p in params.items()}
    fixed: set[str] = set()
    while True:
        free = [name for name in sizes if name not in fixed]
        left = stay - sum(held[name] for name in fixed)
        quota = {name: Fraction(left * sizes[name], sum(sizes[n] for n in free)) for name in free}
        short = {name for name in free if quota[name] < held[name]}
        if not short:
            break
        fixed |= short
    kept = held | {name: math.floor(q) for name, q in quota.items()}
    while sum(kept.values()) < stay:
        kept[max(free, key=lambda name: quota[name] - kept[name])] += 1
    return kept


def erk_shares(params: dict[str, Tensor], s: float, row_floor: int) -> dict[str, int]:
    """How many weights each layer keeps by ERK: the sum of its dimensions times one level for all, within bounds.

    The level is found between the two breakpoints, where a layer reaches a bound, that enclose it.
    """
    sums = {name: sum(p.shape) for name, p in params.items()}
    most = {name: p.numel() for name, p in params.items()}
    least = {name: max(int(row_tops(p.detach(), row_floor).sum()), 1) for name, p in params.items()}
    total = sum(most.values())
    stay = max(total - round(s * total), sum(least.values()))

    def at(level: Fraction) -> dict[str, Fraction]:
        return {name: min(max(level * sums[name], Fraction(least[name])), Fraction(most[name])) for name in sums}

    breakpoints = sorted({Fraction(bound[name], sums[name]) for bound in (least, most) for name in sums})
    level = max(point for point in breakpoints if sum(at(point).values()) <= stay)
    slope = sum(sums[name] for name in sums if least[name] <= level * sums[name] < most[name])
    quota = at(level + (stay - sum(at(level).values())) / slope if slope else level)
    kept = {name: math.floor(q) for name, q in quota.items()}
    while sum(kept.values()) < stay:
        kept[max(kept, key=lambda name: quota[name] - kept[name])] += 1
    return kept


def lamp_order(layers: Sequence[Tensor], tops: Sequence[Tensor]) -> Tensor:
    """Indices by w^2 over the sum of the squares from the layer's largest down to it, then layer, |w| and index.

    Of equal weights, the tops of rows come last.
    """
    scores = []
    for w, top in zip(layers, tops, strict=True):
        unit = 2.0 ** (math.frexp(float(w.max()))[1] - 1)
        down = [(x / unit) ** 2 for x in w.sort(descending=True).values.tolist()]
        by_rank = [x / total if total else 0.0 for x, total in zip(down, accumulate(down), strict=True)]
        score = torch.empty_like(w)
        ascending = torch.from_numpy(np.lexsort((top, w)))
        score[ascending] = torch.tensor(by_rank[::-1], dtype=w.dtype)
        scores.append(score)
    number = torch.cat([torch.full((len(w),), i) for i, w in enumerate(layers)])
    return torch.from_numpy(np.lexsort((torch.cat(list(layers)), number, torch.cat(scores))))


@dataclass(frozen=True)
class Cyclical:
    """Cyclical pruning as s, eta and update_at, from the formulas of the paper; k = 1 is gradual pruning."""

    s_t: float
    T: int
    k: int
    delta_t: int
    ramp: float = 0.8
    s_init: float | None = None

    def local(self, t: int) -> tuple[int, int, int]:
        """The cycle c of [floor(cT/k), floor((c+1)T/k)) that t is in, the time since its start, and its length."""
        for c in range(self.k):
            start, stop = c * self.T // self.k, (c + 1) * self.T // self.k
            if start <= t < stop:
                return c, t - start, stop - start
        raise ValueError(f"t = {t} is outside a run of T = {self.T} updates")

    def s(self, t: int) -> float:
        c, t, length = self.local(t)
        end = min(round(self.ramp * length), length - 1)
        later = 0.5 * self.s_t if self.s_init is None else self.s_init
        s_init = 0.0 if c == 0 else later
        return self.s_t if t >= end else self.s_t + (s_init - self.s_t) * (1 - t / end) ** 3

    def eta(self, t: int) -> float:
        _, t, length = self.local(t)
        return 1.0 if t < round(0.75 * length) else 0.1

    def update_at(self, t: int) -> bool:
        _, t, length = self.local(t)
        end = min(round(self.ramp * length), length - 1)
        return t <= end and (t % self.delta_t == 0 or t == end)


class Run(NamedTuple):
    """What a run leaves."""

    masks: dict[str, Tensor]
    """The last masks."""
    weights: dict[str, Tensor]
    """Copy of the model's state dict."""
    history: list[dict[str, Tensor]]
    """The masks after every update."""


def model_loss(model: nn.Module, inputs: Any, labels: Any) -> Tensor:
    """The loss of a model with the interface of Hugging Face."""
    return model(inputs, labels=labels)["loss"]


def tv_pgd(
    model: nn.Module,
    updates: Sequence[Sequence[tuple[Any, Any]]],
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    method: Any,
    *,
    names: Sequence[str],
    loss: Callable[[nn.Module, Any, Any], Tensor] = model_loss,
    share: str = "uniform",
    project_at: Callable[[int], bool] = lambda t: True,
    mask_momentum: bool = False,
    row_floor: int = 0,
) -> Run:
    """Train `model` in place by Algorithm 1.

    Args:
        model: The model.
        updates: The micro-batches (inputs, labels) of every update, whose gradients are averaged.
        make_optimizer: The optimizer of the model's parameters, with the base learning rate.
        method: Anything with s(t), eta(t) and update_at(t), such as `Cyclical`.
        names: Names of the parameters to prune.
        loss: The loss, from model, inputs and labels.
        share: "uniform", "erk", "ranked" (global) or "lamp".
        project_at: When line 7 is executed.
        mask_momentum: Whether line 7 is also executed on the optimizer's momentum.
        row_floor: How many weights every row keeps at least.
    """
    params = {name: p for name, p in model.named_parameters() if name in names}
    masks = {name: torch.ones_like(p, dtype=torch.bool) for name, p in params.items()}
    history = []
    optimizer = make_optimizer(model.parameters())
    base = [group["lr"] for group in optimizer.param_groups]
    for t, batches in enumerate(updates):  # line 2
        for group, lr in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = lr * method.eta(t)
        optimizer.zero_grad()
        for inputs, labels in batches:
            (loss(model, inputs, labels) / len(batches)).backward()
        optimizer.step()  # line 3
        if method.update_at(t):  # line 4
            masks = magprune(params, method.s(t), share, row_floor=row_floor)  # line 5
        if project_at(t):
            for name, p in params.items():
                p.data[~masks[name]] = 0  # line 7
                if mask_momentum:
                    state = optimizer.state[p]
                    state["momentum_buffer" if "momentum_buffer" in state else "exp_avg"][~masks[name]] = 0
        history.append(masks)
    return Run(masks, {name: value.clone() for name, value in model.state_dict().items()}, history)


def reference_run(
    model: nn.Module,
    updates: Sequence[Sequence[tuple[Any, Any]]],
    make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    *,
    s_t: float,
    k: int,
    delta_t: int,
    names: Sequence[str],
    **options: Any,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Cyclical pruning of `model`, in place, over all the updates: the last masks and the model's state."""
    run = tv_pgd(model, updates, make_optimizer, Cyclical(s_t, len(updates), k, delta_t), names=names, **options)
    return run.masks, run.weights
