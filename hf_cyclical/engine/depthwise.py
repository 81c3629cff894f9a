"""The kernel of depthwise convolutions: each row of the input is loaded once for all outputs that need it."""

from llvmlite import ir

from .activations import ACTIVATIONS
from .emitter import BYTES, I32, Emitter, Value, Vector

__all__ = ["DEPTHWISE", "emit_depthwise"]

DEPTHWISE = (
    "source",  # address of the first tap of the first plane's first output pixel
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
HOISTED = 9  # weights that stay in registers, where there are 32 of them


def emit_depthwise(e: Emitter, kernel: tuple[int, int], stride: int, strip: int, last: int, activation: str) -> None:
    """Convolve each plane by its own weights, strip by strip of each row.

    Args:
        e: Where to.
        kernel: Rows and columns of the weights.
        stride: 1 or 2, in both directions.
        strip: Vectors of a row that are computed at once.
        last: Those in the last strip of a row.
        activation: What is applied to the result.
    """
    taps = kernel[0] * kernel[1]
    last_lanes = e.lanes(e["rest"])

    def plane(index: Value) -> None:
        source, target = (e.add(e[name], e.mul(index, e[f"{name}_stride"])) for name in ("source", "target"))
        weights = e.add(e["weights"], e.mul(index, taps * BYTES))
        bias = e.splat(e.load_float(e.add(e["bias"], e.mul(index, BYTES))))
        rows = _Rows(e, kernel, stride, weights, bias)

        def one_strip(number: Value, vectors: int, lanes: Value | None) -> None:
            offset = e.mul(number, strip * e.vector_bytes)
            top, there = e.add(source, e.mul(offset, stride)), e.add(target, offset)

            def store(y: Value, values: Vector) -> None:
                at = e.add(there, e.mul(y, e["target_row"]))
                for j, value in enumerate(values):
                    result = ACTIVATIONS[activation](e, value)
                    if lanes is not None and j == vectors - 1:
                        e.store_where(result, e.add(at, j * e.vector_bytes), lanes)
                    else:
                        e.store(result, at, j * e.vector_bytes)

            rows.emit(top, vectors, store)

        e.each(0, e["strips"], lambda number: one_strip(number, strip, None))
        one_strip(e["strips"], last, last_lanes)

    e.each(*e.share(e["planes"]), plane)
    e.end()


class _Rows:
    """The loop over the rows of a strip: it carries the sums of outputs whose last rows are still to come."""

    def __init__(self, e: Emitter, kernel: tuple[int, int], stride: int, weights: Value, bias: Value) -> None:
        self.e, (self.rows, self.columns), self.stride, self.bias = e, kernel, stride, bias
        self._weights = weights
        taps = self.rows * self.columns
        kept = range(taps) if e.width == 16 and taps <= HOISTED else ()
        self._hoisted = [self._loaded(tap) for tap in kept]

    def emit(self, top: Value, vectors: int, store) -> None:
        e, step = self.e, self.stride
        waiting = (self.rows - 1) // step  # outputs after the one that is next
        fresh = max(0, self.rows - step)  # the first row that the next output sees first
        sums = [[self.bias] * vectors for _ in range(waiting)]
        for j in range(fresh):
            sums = self._add_row(sums, j, e.add(top, e.mul(e["source_row"], j)))

        def row(y: Value, carry: Vector) -> Vector:
            sums = [carry[i * vectors : (i + 1) * vectors] for i in range(waiting)] + [[self.bias] * vectors]
            first = e.add(top, e.mul(e.mul(y, step), e["source_row"]))
            for j in range(fresh, self.rows):
                sums = self._add_row(sums, j, e.add(first, e.mul(e["source_row"], j)))
            store(y, sums[0])
            return [value for part in sums[1:] for value in part]

        e.loop(0, e["rows"], 1, [value for part in sums for value in part], row)

    def _add_row(self, sums: list[Vector], j: int, address: Value) -> list[Vector]:
        """Add row j of the next output's window to all outputs that it belongs to."""
        e, pixels = self.e, self._pixels(address, len(sums[0]) if sums else 0)
        added = []
        for later, acc in enumerate(sums):
            ky = j - self.stride * later
            if 0 <= ky < self.rows:
                for kx, vectors in enumerate(pixels):
                    weight = self._weight(ky * self.columns + kx)
                    acc = [e.fma(x, weight, a) for x, a in zip(vectors, acc, strict=True)]
            added.append(acc)
        return added

    def _pixels(self, address: Value, vectors: int) -> list[Vector]:
        """For each column of the kernel, its pixels."""
        e = self.e
        if self.stride == 1:
            return [
                [e.load(address, kx * BYTES + i * e.vector_bytes) for i in range(vectors)] for kx in range(self.columns)
            ]
        columns: list[Vector] = []
        for kx in range(0, self.columns, 2):
            at = kx * BYTES
            pairs = [
                [e.load(address, at + (2 * i + half) * e.vector_bytes) for half in range(2)] for i in range(vectors)
            ]
            columns += [[_every_second(e, pair, start) for pair in pairs] for start in range(2)]
        return columns[: self.columns]

    def _weight(self, tap: int) -> Value:
        return self._hoisted[tap] if self._hoisted else self._loaded(tap)

    def _loaded(self, tap: int) -> Value:
        return self.e.splat(self.e.load_float(self._weights, tap * BYTES))


def _every_second(e: Emitter, pair: Vector, start: int) -> Value:
    order = ir.Constant(ir.VectorType(I32, e.width), list(range(start, 2 * e.width, 2)))
    return e.b.shuffle_vector(*pair, order)
