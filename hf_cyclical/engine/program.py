"""Rows of kernels with their buffers: built once, then placed in memory as often as threads need it."""

import ctypes
import os
import struct
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from .movement import RUN, emit_run
from .native import Host, Kernel, kernel_address
from .planes import Layout, Tensor

__all__ = ["Allocate", "Cell", "Instance", "Place", "Program", "ordinary_memory"]

Allocate = Callable[[int], np.ndarray]  # floats -> zeroed memory, aligned to 64 bytes
WRITTEN = ("target", "scratch")  # the fields of rows that say where a kernel writes
EPOCH = 16  # where in the memory of a barrier its epoch is: in a cache line that is not written while threads wait
CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True)
class Place:
    """An address inside a tensor's buffer: bytes from the start of one of its bands."""

    tensor: Tensor
    offset: int = 0
    band: int = 0


@dataclass(frozen=True)
class Cell:
    """The address of a torch tensor that is given when the program runs."""

    index: int


Field = int | float | np.ndarray | Place | Cell | None


@dataclass(frozen=True, eq=False)
class Row:
    """A kernel, and what its fields hold.

    Attributes:
        owner: The thread that runs it alone; if -1, all threads share it.
        bundle: Rows of the same bundle do not depend on each other, although they may use the same tensors.
    """

    kernel: Kernel
    fields: dict[str, Field]
    owner: int = -1
    bundle: Hashable = None

    def tensors(self) -> list[Tensor]:
        return [place.tensor for place in self.places()]

    def places(self) -> list[Place]:
        return [value for value in self.fields.values() if isinstance(value, Place)]


@dataclass
class Program:
    """Rows in the order in which they run.

    Attributes:
        target: What the kernels are compiled for.
        threads: How many run a row together.
        rows: The rows.
        cells: How many torch tensors it reads and writes.
    """

    target: Host
    threads: int = 1
    rows: list[Row] = field(default_factory=list)
    cells: int = 0

    def add(self, kernel: Kernel, *, owner: int = -1, bundle: Hashable = None, **fields: Field) -> None:
        """Append a row; what is not given is 0."""
        unknown = fields.keys() - set(kernel.fields)
        if unknown:
            raise ValueError(f"kernel {kernel.name} has no field {sorted(unknown)[0]!r}")
        self.rows.append(Row(kernel, fields, owner, bundle))

    def cell(self) -> Cell:
        self.cells += 1
        return Cell(self.cells - 1)

    def buffers(self) -> dict[Tensor, int]:
        """Which buffer each tensor uses: that of another one of the same layout which is not needed any more.

        Only of the same layout, as the padding is written when a buffer is made and never again.
        """
        last = {tensor: i for i, row in enumerate(self.rows) for tensor in row.tensors()}
        chosen: dict[Tensor, int] = {}
        free: dict[Layout, list[int]] = {}
        count = 0
        for i, row in enumerate(self.rows):
            for tensor in row.tensors():
                if tensor in chosen:
                    continue
                waiting = [] if tensor.exclusive else free.get(tensor.layout, [])
                chosen[tensor], count = (waiting.pop(), count) if waiting else (count, count + 1)
            for tensor in dict.fromkeys(row.tensors()):
                if last[tensor] == i and not tensor.exclusive:
                    free.setdefault(tensor.layout, []).append(chosen[tensor])
        return chosen

    def waits(self, chosen: dict[Tensor, int]) -> list[bool]:
        """After which rows all threads wait for one another: where a row needs what another thread's rows used.

        Args:
            chosen: The buffer of each tensor.
        """
        waits = [False] * len(self.rows)
        used: dict[tuple[int, int], list[tuple[Row, bool]]] = {}
        for i, row in enumerate(self.rows):
            touched = _touched(row, chosen)
            if any(_clash(row, write, *other) for part, write in touched for other in used.get(part, ())):
                waits[i - 1] = True
                used = {}
            for part, write in touched:
                used.setdefault(part, []).append((row, write))
        return waits


def _touched(row: Row, chosen: dict[Tensor, int]) -> list[tuple[tuple[int, int], bool]]:
    """The bands of buffers that a row uses, and whether it writes there. One that all threads share uses all bands."""
    found = []
    for name, place in row.fields.items():
        if isinstance(place, Place):
            bands = [place.band] if row.owner >= 0 else range(place.tensor.layout.bands)
            found += [((chosen[place.tensor], band), name in WRITTEN) for band in bands]
    return found


def _clash(row: Row, write: bool, other: Row, other_write: bool) -> bool:
    apart = row.owner == other.owner >= 0 or (row.bundle is not None and row.bundle == other.bundle)
    return (write or other_write) and not apart


def ordinary_memory(floats: int) -> np.ndarray:
    """Zeros that begin at a cache line."""
    memory = np.zeros(floats + 16, np.float32)
    start = (-memory.ctypes.data // 4) % 16
    return memory[start : start + floats]


class Instance:
    """A program in memory: buffers of its own, and rows that point to them.

    Args:
        program: What runs.
        allocate: Where the buffers and the constants come from.
        twin: Another instance of the same program, whose constants serve this one, too.
    """

    def __init__(self, program: Program, allocate: Allocate = ordinary_memory, twin: "Instance | None" = None) -> None:
        self._allocate = allocate
        self._constants: dict[int, tuple[np.ndarray, np.ndarray]] = {} if twin is None else twin._constants
        self.cells = (ctypes.c_int64 * (2 * max(program.cells, 1)))()
        chosen = program.buffers()
        self._memory: dict[int, np.ndarray] = {}
        for tensor, index in chosen.items():
            if index not in self._memory:
                self._memory[index] = allocate(tensor.layout.floats)
                if tensor.layout.fill:
                    self._memory[index][:] = tensor.layout.fill
        self._places = {tensor: self._memory[index] for tensor, index in chosen.items()}
        self._rows = [self._row(program.target, row) for row in program.rows]
        waits = program.waits(chosen)
        self._addresses = np.array(
            [(row.ctypes.data, program.rows[i].owner, waits[i]) for i, row in enumerate(self._rows)], np.int64
        )
        self._barrier = np.zeros(2 * EPOCH, np.int64)
        run = Kernel("run", RUN, emit_run)
        self._run = CALL(kernel_address(run, program.target))
        self._jobs: dict[tuple[int, int, int], tuple[int, np.ndarray]] = {}

    def run(self, first: int, last: int, images: int = 1, rank: int = 0, size: int = 1) -> None:
        """Run some rows for each image. Every one of `size` threads calls this with its own rank."""
        key = (first, last, images)
        job = self._jobs.get(key)
        if job is None:
            if len(self._jobs) > 64:
                self._jobs.clear()
            row = self._job(*key)
            job = self._jobs[key] = (row.ctypes.data, row)
        self._run(job[0], rank, size)

    def point(self, cell: int, address: int, step: int) -> None:
        """Say where the torch tensor of a cell is, and how many bytes later the next image."""
        self.cells[2 * cell], self.cells[2 * cell + 1] = address, step

    def ready(self, size: int) -> None:
        """Before several threads run rows together. When one has come to the end, all others have done their work."""
        self._barrier[EPOCH] = self._barrier[0] // size

    def _job(self, first: int, last: int, images: int) -> np.ndarray:
        values = {
            "rows": self._addresses.ctypes.data + 24 * first,
            "count": last - first,
            "images": images,
            "cells": ctypes.addressof(self.cells),
            "cell_count": len(self.cells) // 2,
            "barrier": self._barrier.ctypes.data,
            "epoch": self._barrier[EPOCH:].ctypes.data,
            "sleep": _sleep(),
        }
        return np.array([0, *(values[name] for name in RUN)], np.int64)

    def _row(self, target: Host, row: Row) -> np.ndarray:
        fields = [self._value(row.fields.get(name)) for name in row.kernel.fields]
        return np.array([kernel_address(row.kernel, target), *fields], np.int64)

    def _value(self, value: Field) -> int:
        if value is None:
            return 0
        if isinstance(value, Place):
            start = 4 * value.band * value.tensor.layout.band_floats
            return self._places[value.tensor].ctypes.data + start + value.offset
        if isinstance(value, Cell):
            return ctypes.addressof(self.cells) + 16 * value.index
        if isinstance(value, np.ndarray):
            return self._constant(value)
        return float_bits(value) if isinstance(value, float) else int(value)

    def _constant(self, array: np.ndarray) -> int:
        """A copy in memory of our own, shared by all rows that use the same array."""
        if id(array) not in self._constants:
            copy = self._allocate(-(-array.nbytes // 4))
            copy.view(np.uint8)[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
            self._constants[id(array)] = (array, copy)
        return self._constants[id(array)][1].ctypes.data


def float_bits(value: float) -> int:
    """The bits of a float as an integer, as the kernels read them from a row."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


@cache
def _sleep() -> int:
    """The address of a function that gives the processor to another thread."""
    if os.name != "posix":
        return 0
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
