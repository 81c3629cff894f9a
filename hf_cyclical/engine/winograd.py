"""The kernel of a dense convolution with many rows of taps, which computes several rows of outputs together.

Winograd's algorithm in one direction: 4 rows of outputs, of which each sums over 4 rows of inputs, take 7 products
instead of 16. Products are of sums of input rows, made beforehand, and of sums of weights; sums of products are rows.
"""

import numpy as np

from .activations import ACTIVATIONS
from .emitter import BYTES, Emitter, Value, Vector

__all__ = ["AT_ONCE", "ROWS", "WINOGRAD", "emit_winograd", "transforms"]

ROWS = 4  # of outputs, together
AT_ONCE = 4  # output channels that share what is loaded
POINTS = (0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0)  # at which polynomials are evaluated; infinity comes last
WINOGRAD = (
    "source",  # address of the first pixel of the first plane of the first product
    "source_row",  # bytes from one row to the next
    "product_bytes",  # from the planes of one product to those of the next
    "target",
    "target_stride",  # bytes from one plane to the next
    "target_row",
    "tiles",  # groups of rows
    "outputs",  # planes to compute, divided by those that are computed at once
    "inputs",
    "offsets",  # int32 per input, in bytes
    "weights",  # for each group of outputs, for each product, for each input, one float per output
    "bias",
    "scratch",  # products of a strip, for each thread
    "scratch_bytes",  # per thread
    "strips",  # of a row, not counting the last one
    "rest",  # pixels in the last vector of a row
    "low",
    "high",
)


def transforms(taps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrices (outputs from products, weights to products, inputs to products) for rows of so many taps.

    A product of polynomials is known from its values at as many points as it has coefficients; a convolution is the
    transpose of that.
    """
    count = ROWS + taps - 1

    def values(size: int) -> np.ndarray:
        powers = np.array([[point**k for k in range(size)] for point in POINTS[: count - 1]])
        return np.vstack([powers, np.eye(size)[-1:]])

    return values(ROWS).T, values(taps), np.linalg.inv(values(count)).T


def emit_winograd(e: Emitter, taps: int, strip: int, last: int, activation: str) -> None:
    """Compute the products of a strip, then its rows.

    Args:
        e: Where to.
        taps: Rows of inputs that an output sums over.
        strip: Vectors of a row that are computed at once.
        last: Those in the last strip of a row.
        activation: What is applied to the result.
    """
    outputs_from_products = transforms(taps)[0]
    products = ROWS + taps - 1
    scratch = e.add(e["scratch"], e.mul(e.rank, e["scratch_bytes"]))
    last_lanes = e.lanes(e["rest"])
    group_bytes = e.mul(e["inputs"], AT_ONCE * BYTES)

    def one(tile: Value, number: Value, group: Value, vectors: int, lanes: Value | None) -> None:
        offset = e.mul(number, strip * e.vector_bytes)
        source = e.add(e["source"], e.mul(tile, e["source_row"]), offset)
        weights = e.add(e["weights"], e.mul(e.mul(group, products), group_bytes))
        part = AT_ONCE * vectors * e.vector_bytes

        def product(index: Value) -> None:
            first = e.add(weights, e.mul(index, group_bytes))
            sums = _product(e, vectors, e.add(source, e.mul(index, e["product_bytes"])), first)
            for i, value in enumerate(sums):
                e.store(value, e.add(scratch, e.mul(index, part)), i * e.vector_bytes)

        e.each(0, products, product)
        plane = e.mul(group, AT_ONCE)
        for m in range(AT_ONCE):
            bias = e.splat(e.load_float(e.add(e["bias"], e.mul(e.add(plane, m), BYTES))))
            target = e.add(e["target"], e.mul(e.add(plane, m), e["target_stride"]), offset)
            target = e.add(target, e.mul(e.mul(tile, ROWS), e["target_row"]))
            for j in range(vectors):
                loaded = [e.load(scratch, k * part + (m * vectors + j) * e.vector_bytes) for k in range(products)]
                for row, factors in enumerate(outputs_from_products):
                    value = ACTIVATIONS[activation](e, _sum(e, bias, factors, loaded))
                    at = e.add(target, e.mul(e["target_row"], row), j * e.vector_bytes)
                    if lanes is not None and j == vectors - 1:
                        e.store_where(value, at, lanes)
                    else:
                        e.store(value, at)

    def at_tile(tile: Value) -> None:
        def at_strip(number: Value, vectors: int, lanes: Value | None) -> None:
            e.each(0, e["outputs"], lambda group: one(tile, number, group, vectors, lanes))

        e.each(0, e["strips"], lambda number: at_strip(number, strip, None))
        at_strip(e["strips"], last, last_lanes)

    e.each(*e.share(e["tiles"]), at_tile)
    e.end()


def _product(e: Emitter, vectors: int, source: Value, weights: Value) -> Vector:
    """AT_ONCE x vectors sums over all inputs."""

    def term(index: Value, acc: Vector) -> Vector:
        pixels = e.add(source, e.load_int(e.add(e["offsets"], e.mul(index, BYTES))))
        loaded = [e.load(pixels, j * e.vector_bytes) for j in range(vectors)]
        at = e.add(weights, e.mul(index, AT_ONCE * BYTES))
        factors = [e.splat(e.load_float(at, m * BYTES)) for m in range(AT_ONCE)]
        return [e.fma(loaded[i % vectors], factors[i // vectors], total) for i, total in enumerate(acc)]

    return e.loop(0, e["inputs"], 1, [e.splat(0.0)] * (AT_ONCE * vectors), term)


def _sum(e: Emitter, start: Value, factors: np.ndarray, values: Vector) -> Value:
    for factor, value in zip(factors, values, strict=True):
        if factor == 1:
            start = e.b.fadd(start, value)
        elif factor:
            start = e.fma(value, e.splat(float(factor)), start)
    return start
