"""The rivals of cyclical pruning as naive loops, from their papers and the authors' code: oracles, like reference.py.

Each trains a model in place and returns the masks after every update. They share no code with the package. Ties are
broken as everywhere in it: of equal weights the one of lower index goes first.
"""

import math
from fractions import Fraction

import pattern_units
import torch
from reference import magprune, row_tops
from torch import nn


class Loop:
    """What all of them have: a model, its optimizer, the gradient of a batch."""

    def __init__(self, model, make_optimizer, eta, names):
        self.model, self.eta = model, eta
        self.params = {name: p for name, p in model.named_parameters() if name in names}
        self.optimizer = make_optimizer(model.parameters())
        self.base = [group["lr"] for group in self.optimizer.param_groups]
        self.masks = {name: torch.ones_like(p, dtype=torch.bool) for name, p in self.params.items()}
        self.history = []

    def backward(self, t, batch):
        for group, lr in zip(self.optimizer.param_groups, self.base, strict=True):
            group["lr"] = lr * self.eta(t)
        self.optimizer.zero_grad()
        parts = batch if isinstance(batch, list) else [batch]  # micro-batches, whose gradients are averaged
        for inputs, labels in parts:
            output = self.model(inputs)
            logits = output["logits"] if isinstance(output, dict) else output
            (nn.functional.cross_entropy(logits, labels) / len(parts)).backward()
        return {name: p.grad.clone() for name, p in self.params.items()}

    def step_with_masked_gradients(self):
        for name, p in self.params.items():
            p.grad[~self.masks[name]] = 0
        self.optimizer.step()
        self.mask()

    def mask(self):
        for name, p in self.params.items():
            p.data[~self.masks[name]] = 0

    def note(self):
        self.history.append({name: mask.clone() for name, mask in self.masks.items()})

    def restart(self, p, places):
        """Weights that are grown: zero, with every slot of the optimizer zero."""
        p.data[places] = 0
        for slot in self.optimizer.state[p].values():
            if slot.shape == p.shape:
                slot[places] = 0


def smallest(values, places, n):
    """Of the given places the `n` with the smallest magnitudes, flat, the lower index first."""
    order = sorted(places, key=lambda i: (abs(float(values[i])), i))
    return order[:n]


def drop_and_grow(w, mask, score, n_drop, n_grow, row_floor=0):
    """The new mask of a layer."""
    new, active = mask.flatten().clone(), mask.flatten().nonzero().flatten().tolist()
    lifted = torch.where(mask, w.detach().abs() + 1, torch.zeros(())) if row_floor else None  # kept ones come first
    spared = row_tops(lifted, row_floor) & mask.flatten() if row_floor else torch.zeros_like(new)
    new[smallest(w.detach().flatten(), [i for i in active if not spared[i]], n_drop)] = False
    free = (~new).nonzero().flatten().tolist()
    order = sorted(free, key=lambda i: (abs(float(score.flatten()[i])), i))
    new[order[len(order) - n_grow :]] = True
    return new.view(mask.shape)


def exchanged(loop, scores, count, pattern=None):
    """New masks, with as many grown as dropped in every layer; `count` says how many, given how many are kept."""
    if pattern:
        return pattern_units.exchange(loop.params, loop.masks, scores, pattern, pattern_units.same_layer(count))
    numbers = {name: count(int(mask.sum())) for name, mask in loop.masks.items()}
    return {
        name: drop_and_grow(p, loop.masks[name], scores[name], numbers[name], numbers[name])
        for name, p in loop.params.items()
    }


def rigl(
    model,
    batches,
    make_optimizer,
    eta,
    names,
    *,
    s_t,
    delta_t,
    fraction=0.3,
    stop=0.75,
    replaces=True,
    first,
    pattern=None,
):
    """Evci et al. 2020, Algorithm 1 and sparse_optimizers_base.py; `first` are the masks at the start."""
    loop, end = Loop(model, make_optimizer, eta, names), round(stop * len(batches))
    for t, batch in enumerate(batches):
        gradients = loop.backward(t, batch)
        due = t % delta_t == 0 and t < end
        if t == 0:
            loop.masks = {name: mask.clone() for name, mask in first.items()}
            loop.mask()
        elif not (due and replaces):
            loop.step_with_masked_gradients()
        if due and t > 0:
            f = fraction / 2 * (1 + math.cos(math.pi * t / end))
            old = loop.masks
            loop.masks = exchanged(loop, gradients, lambda kept, f=f: int(f * kept), pattern)
            for name, p in loop.params.items():
                loop.restart(p, loop.masks[name] & ~old[name])
            loop.mask()
        loop.note()
    return loop


def snfs(model, batches, make_optimizer, eta, names, *, s_t, delta_t, fraction=0.5, first, pattern=None):
    """Dettmers and Zettlemoyer 2019, section 3 and sparselearning/core.py, with exactly as many grown as dropped."""
    loop, T = Loop(model, make_optimizer, eta, names), len(batches)
    for t, batch in enumerate(batches):
        loop.backward(t, batch)
        if t == 0:
            loop.masks = {name: mask.clone() for name, mask in first.items()}
        else:
            loop.optimizer.step()  # with dense gradients: the momentum is not masked
        loop.mask()
        if t > 0 and t % delta_t == 0:
            p_t = 0.005 + (fraction - 0.005) * (1 + math.cos(math.pi * t / T)) / 2
            exchange_by_momentum(loop, p_t, pattern)
            loop.mask()
        loop.note()
    return loop


def exchange_by_momentum(loop, rate, pattern=None):
    momentum = {}
    for name, p in loop.params.items():
        state = loop.optimizer.state[p]
        adam = "exp_avg" in state
        momentum[name] = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8) if adam else state["momentum_buffer"]
    if pattern:
        old, plan = loop.masks, pattern_units.by_momentum(rate)
        loop.masks = pattern_units.exchange(loop.params, old, momentum, pattern, plan)
        for name, p in loop.params.items():
            p.data[loop.masks[name] & ~old[name]] = 0
        return
    means = {name: float(momentum[name][mask].double().abs().mean()) for name, mask in loop.masks.items()}
    mean = sum(means.values()) / len(means)
    drops = {}
    for name, mask in loop.masks.items():
        sparsity = float((~mask).double().mean())
        own = min(rate, sparsity) if sparsity < 0.2 and means[name] > mean else rate
        drops[name] = math.ceil(own * int(mask.sum()))
    total, whole = sum(drops.values()), sum(Fraction(m) for m in means.values())
    quota = {name: Fraction(m) * total / whole for name, m in means.items()}
    most = {name: int(Fraction(99, 100) * (int((~mask).sum()) + drops[name])) for name, mask in loop.masks.items()}
    assert sum(most.values()) >= total
    for _ in range(1000):  # the authors' loop: what is beyond a bound is spread over all layers, again and again
        beyond = sum(max(quota[name] - most[name], Fraction()) for name in quota)
        quota = {name: min(q, Fraction(most[name])) for name, q in quota.items()}
        if not beyond:
            break
        below = [name for name in quota if quota[name] < most[name]]
        for name in below:
            quota[name] += beyond / len(below)
    grows = {name: int(q) for name, q in quota.items()}
    while sum(grows.values()) < total:
        grows[max(grows, key=lambda name: quota[name] - grows[name])] += 1
    for name, p in loop.params.items():
        old = loop.masks[name]
        loop.masks[name] = drop_and_grow(p, old, momentum[name], drops[name], grows[name])
        p.data[loop.masks[name] & ~old] = 0


def cubic(t, s_t, end):
    return s_t if t >= end else s_t - s_t * (1 - t / end) ** 3


def dpf(model, batches, make_optimizer, eta, names, *, s_t, delta_t, ramp=0.75):
    """Lin et al. 2020, Algorithm 1: `loop.dense` are the dense weights, the model ends as theta * M."""
    loop, end = Loop(model, make_optimizer, eta, names), round(ramp * len(batches))
    loop.dense = {name: p.detach().clone() for name, p in loop.params.items()}
    for t, batch in enumerate(batches):
        loop.mask()
        loop.backward(t, batch)  # at theta * M
        for name, p in loop.params.items():
            p.data.copy_(loop.dense[name])
        loop.optimizer.step()  # of the dense theta
        if t == end or (t < end and t % delta_t == 0):
            loop.masks = magprune(loop.params, cubic(t, s_t, end))
        loop.dense = {name: p.detach().clone() for name, p in loop.params.items()}
        loop.note()
    loop.mask()
    return loop


def granet(
    model, batches, make_optimizer, eta, names, *, s_t, delta_t, fraction=0.5, ramp=0.6875, pattern=None, share="ranked"
):
    """Liu et al. 2021 and CIFAR/sparselearning/core.py: step, mask, prune all layers together, drop and grow."""
    loop, T = Loop(model, make_optimizer, eta, names), len(batches)
    end = round(ramp * T)
    for t, batch in enumerate(batches):
        gradients = loop.backward(t, batch)
        loop.step_with_masked_gradients()
        if t == end or t % delta_t == 0:
            s, old = cubic(t, s_t, end), dict(loop.masks)
            if t <= end:
                prunes = pattern_units.prune if pattern else magprune
                loop.masks = prunes(loop.params, s, *([pattern] if pattern else []), share)
                for name, p in loop.params.items():  # apply_mask comes before truncate_weights
                    loop.restart(p, old[name] & ~loop.masks[name])
            rate = 0.005 + (fraction - 0.005) * (1 + math.cos(math.pi * t / T)) / 2
            loop.masks = exchanged(loop, gradients, lambda kept, rate=rate: math.ceil(rate * kept), pattern)
            for name, p in loop.params.items():
                loop.restart(p, loop.masks[name] & ~old[name])
            loop.mask()
        loop.note()
    return loop


def acdc(model, batches, make_optimizer, eta, names, *, s_t, phases):
    """Peste et al. 2021, Algorithm 1: `phases` are (updates, whether they are sparse).

    Gradients need no masks: weights are masked after each step, and the momentum restarts before a dense phase. Adam's
    second moment, which the authors do not have, sees all gradients.
    """
    loop, t = Loop(model, make_optimizer, eta, names), 0
    for updates, sparse in phases:
        for i in range(updates):
            loop.backward(t, batches[t])
            loop.optimizer.step()
            if i == 0:
                dense = {name: torch.ones_like(p, dtype=torch.bool) for name, p in loop.params.items()}
                loop.masks = magprune(loop.params, s_t) if sparse else dense
            loop.mask()
            if sparse and i == updates - 1 and t < len(batches) - 1:
                for state in loop.optimizer.state.values():
                    state["momentum_buffer" if "momentum_buffer" in state else "exp_avg"].zero_()
            loop.note()
            t += 1
    assert t == len(batches)
    return loop
