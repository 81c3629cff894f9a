"""The kernels of depthwise convolutions and of max pooling: a row of the input is loaded once for all its outputs."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from .activations import ACTIVATIONS
from .emitter import BYTES, Emitter, Value, Vector

__all__ = ["WINDOWS", "emit_depthwise", "emit_window_maximum"]

WINDOWS = (
    "source",  # address of the first pixel of the first plane's first window
    "source_stride",  # bytes from one plane to the next
    "source_row",  # bytes from one row to the next
    "target",
    "target_stride",
    "target_row",
    "planes",
    "rows",
    "strips",  # of a row, not counting the last one
    "rest",  # pixels in the last vector of a row
    "weights",  # floats, plane by plane
    "bias",
    "low",
    "high",
)
Pair = tuple[int, int]  # rows, columns
HOISTED = 9  # weights that stay in registers, where there are 32 of them


def emit_depthwise(e: Emitter, kernel: Pair, stride: Pair, strip: int, last: int, activation: str) -> None:
    """Convolve each plane by its own weights, strip by strip of each row.

    Args:
        e: Where to.
        kernel: Rows and columns of a window.
        stride: Of rows, and of columns: 1 or 2.
        strip: Vectors of a row that are computed at once.
        last: Those in the last strip of a row.
        activation: What is applied to the result.
    """
    _emit(e, stride, strip, last, lambda plane: _Convolution(e, kernel, stride, plane, activation))


def emit_window_maximum(e: Emitter, kernel: Pair, stride: Pair, strip: int, last: int) -> None:
    """The largest pixel of each window; the padding must hold nothing larger."""
    _emit(e, stride, strip, last, lambda plane: _Maximum(e, kernel, stride))


def _emit(e: Emitter, stride: Pair, strip: int, last: int, windows: "Callable[[Value], _Windows]") -> None:
    last_lanes = e.lanes(e["rest"])

    def plane(index: Value) -> None:
        source, target = (e.add(e[name], e.mul(index, e[f"{name}_stride"])) for name in ("source", "target"))
        rows = windows(index)

        def one_strip(number: Value, vectors: int, lanes: Value | None) -> None:
            offset = e.mul(number, strip * e.vector_bytes)
            top, there = e.add(source, e.mul(offset, stride[1])), e.add(target, offset)

            def store(y: Value, values: Vector) -> None:
                at = e.add(there, e.mul(y, e["target_row"]))
                for j, value in enumerate(values):
                    if lanes is not None and j == vectors - 1:
                        e.store_where(value, e.add(at, j * e.vector_bytes), lanes)
                    else:
                        e.store(value, at, j * e.vector_bytes)

            rows.emit(top, vectors, store)

        e.each(0, e["strips"], lambda number: one_strip(number, strip, None))
        one_strip(e["strips"], last, last_lanes)

    e.each(*e.share(e["planes"]), plane)
    e.end()


class _Windows(ABC):
    """The loop over the rows of a strip: it carries the results of windows whose last rows are still to come."""

    def __init__(self, e: Emitter, kernel: Pair, stride: Pair, start: Value) -> None:
        self.e, (self.rows, self.columns), self.stride, self.start = e, kernel, stride, start

    def reduce(self, pixels: list[Vector]) -> list[Vector]:
        """What windows need to know of a row, given the pixels of each of their columns."""
        return pixels

    @abstractmethod
    def add(self, ky: int, reduced: list[Vector], carry: Vector) -> Vector:
        """Take in a row as row ky of a window."""

    def end(self, value: Value) -> Value:
        return value

    def emit(self, top: Value, vectors: int, store: Callable[[Value, Vector], None]) -> None:
        e, step = self.e, self.stride[0]
        waiting = (self.rows - 1) // step  # windows that have begun when another one ends
        fresh = max(0, self.rows - step)  # the first row of a window that no window before it has seen
        parts = [[self.start] * vectors for _ in range(waiting)]
        for j in range(fresh):
            parts = self._add_row(parts, j, e.add(top, e.mul(e["source_row"], j)), vectors)

        def row(y: Value, carry: Vector) -> Vector:
            parts = [carry[i * vectors : (i + 1) * vectors] for i in range(waiting)] + [[self.start] * vectors]
            first = e.add(top, e.mul(e.mul(y, step), e["source_row"]))
            for j in range(fresh, self.rows):
                parts = self._add_row(parts, j, e.add(first, e.mul(e["source_row"], j)), vectors)
            store(y, [self.end(value) for value in parts[0]])
            return [value for part in parts[1:] for value in part]

        e.loop(0, e["rows"], 1, [value for part in parts for value in part], row)

    def _add_row(self, parts: list[Vector], j: int, address: Value, vectors: int) -> list[Vector]:
        """Add row j of the next window to all windows that it belongs to."""
        reduced = self.reduce(self._pixels(address, vectors))
        inside = [0 <= j - self.stride[0] * later < self.rows for later in range(len(parts))]
        return [
            self.add(j - self.stride[0] * later, reduced, part) if inside[later] else part
            for later, part in enumerate(parts)
        ]

    def _pixels(self, address: Value, vectors: int) -> list[Vector]:
        """For each column of the windows, its pixels."""
        e, size, columns = self.e, self.e.vector_bytes, self.columns
        if self.stride[1] == 1:
            return [[e.load(address, kx * BYTES + i * size) for i in range(vectors)] for kx in range(columns)]
        found: list[Vector] = []
        for at in range(0, columns * BYTES, 2 * BYTES):
            pairs = [[e.load(address, at + (2 * i + half) * size) for half in range(2)] for i in range(vectors)]
            found += [[e.every_second(pair, start) for pair in pairs] for start in range(2)]
        return found[:columns]


class _Convolution(_Windows):
    def __init__(self, e: Emitter, kernel: Pair, stride: Pair, plane: Value, activation: str) -> None:
        super().__init__(e, kernel, stride, e.splat(e.load_float(e.add(e["bias"], e.mul(plane, BYTES)))))
        taps = self.rows * self.columns
        self._activation = ACTIVATIONS[activation]
        self._weights = e.add(e["weights"], e.mul(plane, taps * BYTES))
        kept = range(taps) if e.width == 16 and taps <= HOISTED else ()
        self._hoisted = [self._loaded(tap) for tap in kept]

    def add(self, ky: int, reduced: list[Vector], carry: Vector) -> Vector:
        for kx, pixels in enumerate(reduced):
            tap = ky * self.columns + kx
            weight = self._hoisted[tap] if self._hoisted else self._loaded(tap)
            carry = [self.e.fma(x, weight, total) for x, total in zip(pixels, carry, strict=True)]
        return carry

    def end(self, value: Value) -> Value:
        return self._activation(self.e, value)

    def _loaded(self, tap: int) -> Value:
        return self.e.splat(self.e.load_float(self._weights, tap * BYTES))


class _Maximum(_Windows):
    def __init__(self, e: Emitter, kernel: Pair, stride: Pair) -> None:
        super().__init__(e, kernel, stride, e.splat(float("-inf")))

    def reduce(self, pixels: list[Vector]) -> list[Vector]:
        largest = pixels[0]
        for column in pixels[1:]:
            largest = self.add(0, [column], largest)
        return [largest]

    def add(self, ky: int, reduced: list[Vector], carry: Vector) -> Vector:
        return [self.e.larger_of(x, value) for x, value in zip(reduced[0], carry, strict=True)]
