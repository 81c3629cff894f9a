"""Drop-and-grow where zeros have a pattern, with lists of single units: an oracle, like rival_loops.py.

A unit is what stays or goes as one: a weight, or the weights of a block. Units of a field are exchanged for each other.
"""

import itertools
import math
from fractions import Fraction
from typing import NamedTuple

import reference
import torch


class Unit(NamedTuple):
    places: tuple[int, ...]  # flat indices of its weights
    row: int
    group: tuple[int, ...] | None = None  # within which n:m exchanges it


def fields_of(shapes, pattern):
    """The units of every layer inside, beside and below the groups or blocks, with the floor of a row in units of 1."""
    kind = ":" if ":" in pattern else "x"
    first, second = map(int, pattern.split(kind))
    rows, columns = (1, second) if kind == ":" else (first, second)
    inside, beside, below = {}, {}, {}
    for name, shape in shapes.items():
        fits = len(shape) > 1 and shape[0] >= rows and shape[1] >= columns
        o, i = (shape[0] // rows * rows, shape[1] // columns * columns) if fits else (0, 0)
        blocks = {}
        for flat, place in enumerate(itertools.product(*map(range, shape))):
            row = place[0] if len(shape) > 1 else -1
            if not fits or row >= o:
                below.setdefault(name, []).append(Unit((flat,), row))
            elif place[1] >= i:
                beside.setdefault(name, []).append(Unit((flat,), row))
            elif kind == ":":
                group = (row, place[1] // columns, *place[2:])
                inside.setdefault(name, []).append(Unit((flat,), row, group))
            else:
                blocks.setdefault((row // rows, place[1] // columns, *place[2:]), []).append(flat)
        if blocks:
            inside[name] = [Unit(tuple(places), key[0]) for key, places in sorted(blocks.items())]
    return (inside, 0 if kind == ":" else Fraction(1, columns)), (beside, 0), (below, 1)


def sums(units, w):
    flat = w.detach().flatten()
    return [sum(abs(float(flat[place])) for place in unit.places) for unit in units]


def kept_units(units, mask):
    flat = mask.flatten()
    stay = [{bool(flat[place]) for place in unit.places} for unit in units]
    assert all(len(values) == 1 for values in stay)  # blocks are whole
    return [values.pop() for values in stay]


def prune(params, s, pattern, share="uniform"):
    """Masks at sparsity `s` without a floor of the rows."""
    masks = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in params.items()}
    for field, _ in fields_of({name: p.shape for name, p in params.items()}, pattern):
        values = {name: torch.tensor(sums(units, params[name]), dtype=torch.float64) for name, units in field.items()}
        if ":" in pattern and any(units[0].group for units in field.values()):
            n, m = map(int, pattern.split(":"))
            stay = {name: groups_kept(units, values[name], min(round(s * m), m - n)) for name, units in field.items()}
        else:
            stay = reference.magprune(values, s, share) if values else {}
        write(masks, field, stay)
    return masks


def groups_kept(units, values, gone):
    groups = {}
    for i, unit in enumerate(units):
        groups.setdefault(unit.group, []).append(i)
    lost = {i for group in groups.values() for i in sorted(group, key=lambda i: (float(values[i]), i))[:gone]}
    return [i not in lost for i in range(len(units))]


def write(masks, field, stay):
    for name, units in field.items():
        for unit, kept in zip(units, stay[name], strict=True):
            masks[name].view(-1)[list(unit.places)] = bool(kept)


def exchange(params, masks, scores, pattern, plan, row_floor=0):
    """New masks; `plan(sizes, kept, scores)` says how many units of each layer of a field go, and how many come."""
    new = {name: mask.clone().contiguous() for name, mask in masks.items()}
    for field, part in fields_of({name: p.shape for name, p in params.items()}, pattern):
        floor = math.ceil(row_floor * part)
        values, by = ({name: sums(units, w[name]) for name, units in field.items()} for w in (params, scores))
        kept = {name: kept_units(units, masks[name]) for name, units in field.items()}
        if not field:
            continue
        goes, comes = plan({name: len(units) for name, units in field.items()}, kept, by)
        stay = {}
        for name, units in field.items():
            stay[name] = drop(units, kept[name], values[name], goes[name], floor)
        dropped = {name: sum(kept[name]) - sum(stay[name]) for name in field}
        grown = dropped if ":" in pattern else comes(dropped)  # n:m prunes every layer alike
        for name, units in field.items():
            grow(units, kept[name], stay[name], by[name], grown[name])
        write(new, field, stay)
    return new


def drop(units, kept, values, n, floor):
    spared = set()
    for row in {unit.row for unit in units} - {-1}:
        mine = [i for i, unit in enumerate(units) if unit.row == row and kept[i]]
        spared |= set(sorted(mine, key=lambda i: (values[i], i))[max(len(mine) - floor, 0) :])
    order = sorted((i for i in range(len(units)) if kept[i] and i not in spared), key=lambda i: (values[i], i))
    gone = set(order[:n])
    return [kept[i] and i not in gone for i in range(len(units))]


def grow(units, kept, stay, by, n):
    if units[0].group is None:
        free = sorted((i for i in range(len(units)) if not stay[i]), key=lambda i: (by[i], i))
        places = free[len(free) - n :]
    else:
        places = []
        for group in {unit.group for unit in units}:
            mine = [i for i, unit in enumerate(units) if unit.group == group]
            free = sorted((i for i in mine if not stay[i]), key=lambda i: (by[i], i))
            lost = sum(kept[i] for i in mine) - sum(stay[i] for i in mine)
            places += free[len(free) - lost :]
    for i in places:
        stay[i] = True


def same_layer(count):
    """As many come as go, layer by layer; `count` makes a number of how many are kept."""

    def plan(sizes, kept, by):
        return {name: count(sum(flags)) for name, flags in kept.items()}, lambda dropped: dropped

    return plan


def by_momentum(rate):
    """SNFS, as in rival_loops.py."""

    def plan(sizes, kept, by):
        counts = {name: sum(flags) for name, flags in kept.items()}
        means = {}
        for name, flags in kept.items():
            mine = torch.tensor([b for b, stays in zip(by[name], flags, strict=True) if stays], dtype=torch.float64)
            means[name] = float(mine.sum()) / max(len(mine), 1)
        goes = {}
        for name, n in counts.items():
            sparsity = 1 - n / sizes[name]
            growing = sparsity < 0.2 and means[name] > sum(means.values()) / len(means)
            goes[name] = math.ceil(n * (min(rate, sparsity) if growing else rate))
        return goes, lambda dropped: redistribute(sizes, counts, means, dropped)

    return plan


def redistribute(sizes, counts, means, dropped):
    total, whole = sum(dropped.values()), sum(Fraction(mean) for mean in means.values())
    if not whole:
        return dropped
    free = {name: sizes[name] - counts[name] + n for name, n in dropped.items()}
    most = {name: int(Fraction(99, 100) * n) for name, n in free.items()}
    most = most if sum(most.values()) >= total else free
    quota, full = {name: Fraction(mean) * total / whole for name, mean in means.items()}, set()
    while beyond := {name for name, q in quota.items() if q > most[name]}:
        full |= beyond
        excess = sum((quota[name] - most[name] for name in beyond), Fraction())
        others = [name for name in quota if name not in full]
        quota |= {name: Fraction(most[name]) for name in beyond}
        quota |= {name: quota[name] + excess / len(others) for name in others}
    grows = {name: int(q) for name, q in quota.items()}
    while sum(grows.values()) < total:
        grows[max(grows, key=lambda name: quota[name] - grows[name])] += 1
    return grows
