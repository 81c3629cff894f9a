"""Choosing how a layer is computed: by measuring it in a few ways, on buffers like those that it will have."""

import time
from collections.abc import Sequence
from dataclasses import replace

from .native import Host
from .planes import Tensor
from .program import Instance, Place, Program, Row

__all__ = ["fastest", "seconds_of"]

ROUNDS = 4
ENOUGH = 1e-4  # seconds per round: less is not measured well


def fastest(target: Host, candidates: Sequence[Sequence[Row]]) -> tuple[int, list[float]]:
    """The index of the candidate that takes least time, and the seconds of all of them."""
    times = seconds_of(target, candidates)
    return min(range(len(times)), key=times.__getitem__), times


def seconds_of(target: Host, candidates: Sequence[Sequence[Row]]) -> list[float]:
    """How long each candidate takes, the least of a few rounds in which all take turns."""
    jobs = [_alone(target, rows) for rows in candidates]
    repeats = []
    for instance, count in jobs:
        instance.run(0, count)
        once = _time(instance, count, 1)
        repeats.append(max(1, min(200, int(ENOUGH / max(once, 1e-7)))))
    best = [float("inf")] * len(jobs)
    for _ in range(ROUNDS):
        for i, (instance, count) in enumerate(jobs):
            best[i] = min(best[i], _time(instance, count, repeats[i]) / repeats[i])
    return best


def _time(instance: Instance, count: int, repeats: int) -> float:
    start = time.thread_time()
    instance.run(0, count, images=repeats)
    return max(time.thread_time() - start, 1e-9)


def _alone(target: Host, rows: Sequence[Row]) -> tuple[Instance, int]:
    """The rows with tensors of their own, of the same layouts."""
    copies: dict[Tensor, Tensor] = {}

    def copied(value: object) -> object:
        if isinstance(value, Place):
            return replace(value, tensor=copies.setdefault(value.tensor, Tensor(value.tensor.layout, exclusive=True)))
        return value

    program = Program(target)
    for row in rows:
        program.rows.append(Row(row.kernel, {name: copied(value) for name, value in row.fields.items()}))
    return Instance(program), len(rows)
