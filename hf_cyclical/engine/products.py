"""The kernels that multiply by weights: tiles of output pixels in registers, for one output channel after the other.

Both compute `target[o] = activation(bias[o] + sum of weight * source[at offset] + residual[o])` for vectors of pixels.
A tap of a convolution is a constant offset from the output pixel, because rows and planes are padded with zeros.
"""

from collections.abc import Callable

from .activations import ACTIVATIONS
from .emitter import BYTES, Emitter, Value, Vector

__all__ = ["PRODUCT", "emit_dense", "emit_sparse"]

PRODUCT = (
    "source",  # address of the first pixel of the first input plane
    "target",  # address of the first pixel of the first output plane
    "target_stride",  # bytes from one output plane to the next
    "tiles",
    "outputs",  # planes to compute, divided by those that are computed at once
    "blocks",  # groups of inputs, each small enough for the cache
    "starts",  # int32 per block and output: where its weights begin, in bytes
    "weights",  # sparse: (int32 offset, float weight) pairs; dense: floats
    "offsets",  # dense: int32 per input, in bytes
    "block_inputs",  # dense: inputs per block
    "bias",
    "residual",  # address of the first plane to add, or 0
    "residual_planes",  # int32 offset per output, in bytes
    "mask",  # all bits set for pixels, none for the padding between them; or 0
    "low",
    "high",
    "by_tiles",  # 1: threads share the tiles, 0: the outputs
)


PAIR_BYTES = 2 * BYTES
LINE = 64  # bytes of a cache line


def emit_sparse(e: Emitter, tile: int, chains: int, activation: str, ahead: int = 0) -> None:
    """Sparse weights: one load and one fused multiply-add per nonzero weight and vector.

    Args:
        e: Where to.
        tile: Vectors of pixels.
        chains: Sums per vector that do not wait for each other, where a small tile would leave the processor idle; the
            pairs of an output come in this number.
        activation: What is applied to the result.
        ahead: Bytes of the pairs that are on their way from memory, if no tile before has read them.
    """

    def accumulate(source: Value, _: Value, first: Value, last: Value, sums: Vector) -> Vector:
        def pairs(address: Value, acc: Vector) -> Vector:
            terms = []
            for chain in range(chains):
                pixels = e.add(source, e.load_int(address, chain * PAIR_BYTES))
                weight = e.splat(e.load_float(address, chain * PAIR_BYTES + BYTES))
                own = acc[chain * tile : (chain + 1) * tile]
                terms += [e.fma(e.load(pixels, j * e.vector_bytes), weight, a) for j, a in enumerate(own)]
            return terms

        if ahead:
            e.each(e.add(first, ahead), e.add(last, ahead), e.prefetch, LINE)
        zeros = [e.splat(0.0)] * (tile * (chains - 1))
        terms = e.loop(first, last, chains * PAIR_BYTES, [*sums, *zeros], pairs)
        totals = terms[:tile]
        for chain in range(1, chains):
            totals = [e.b.fadd(a, b) for a, b in zip(totals, terms[chain * tile :], strict=False)]
        return totals

    _emit(e, tile, 1, activation, accumulate)


def emit_dense(e: Emitter, tile: int, rows: int, activation: str) -> None:
    """Dense weights: the same, for several output channels at once, which share the loads."""

    def accumulate(source: Value, block: Value, first: Value, last: Value, sums: Vector) -> Vector:
        skipped = e.mul(e.mul(block, e["block_inputs"]), BYTES)
        offset = e.add(e["offsets"], skipped)

        def column(weight: Value, carry: Vector) -> Vector:
            where, *acc = carry
            pixels = e.add(source, e.load_int(where))
            loaded = [e.load(pixels, j * e.vector_bytes) for j in range(tile)]
            for m in range(rows):
                factor = e.splat(e.load_float(weight, m * BYTES))
                for j in range(tile):
                    acc[m * tile + j] = e.fma(loaded[j], factor, acc[m * tile + j])
            return [e.add(where, BYTES), *acc]

        return e.loop(first, last, rows * BYTES, [offset, *sums], column)[1:]

    _emit(e, tile, rows, activation, accumulate)


Accumulate = Callable[[Value, Value, Value, Value, Vector], Vector]


def _emit(e: Emitter, tile: int, rows: int, activation: str, accumulate: Accumulate) -> None:
    whole = e.b.sub(e.i(1), e["by_tiles"])
    tiles, outputs = e.share(e["tiles"], e["by_tiles"]), e.share(e["outputs"], whole)

    def one(pixels: Value, block: Value, output: Value) -> None:
        start = e.add(e["starts"], e.mul(e.add(e.mul(block, e["outputs"]), output), BYTES))
        first, last = (e.add(e["weights"], e.load_int(start, i * BYTES)) for i in range(2))
        planes = [e.add(e.mul(output, rows), m) for m in range(rows)]
        targets = [e.add(e["target"], e.mul(plane, e["target_stride"]), pixels) for plane in planes]
        places = [(m, j * e.vector_bytes) for m in range(rows) for j in range(tile)]

        def biases() -> Vector:
            each = [e.splat(e.load_float(e.add(e["bias"], e.mul(plane, BYTES)))) for plane in planes]
            return [each[m] for m, _ in places]

        def stored() -> Vector:
            return [e.load(targets[m], offset) for m, offset in places]

        sums = e.choose(e.equal(block, 0), biases, stored)
        sums = accumulate(e.add(e["source"], pixels), block, first, last, sums)
        last_block = e.equal(e.add(block, 1), e["blocks"])
        sums = e.choose(last_block, lambda: _finish(e, planes, pixels, places, sums, activation), lambda: sums)
        for (m, offset), value in zip(places, sums, strict=True):
            e.store(value, targets[m], offset)

    def at_tile(index: Value) -> None:
        pixels = e.mul(index, tile * e.vector_bytes)
        e.each(0, e["blocks"], lambda block: e.each(*outputs, lambda output: one(pixels, block, output)))

    e.each(*tiles, at_tile)
    e.end()


def _finish(
    e: Emitter, planes: Vector, pixels: Value, places: list[tuple[int, int]], sums: Vector, activation: str
) -> Vector:
    """Add the residual, apply the activation, and keep the padding zero."""

    def added() -> Vector:
        offsets = [e.load_int(e.add(e["residual_planes"], e.mul(plane, BYTES))) for plane in planes]
        bases = [e.add(e["residual"], offset, pixels) for offset in offsets]
        return [e.b.fadd(s, e.load(bases[m], offset)) for (m, offset), s in zip(places, sums, strict=True)]

    sums = e.choose(e.nonzero(e["residual"]), added, lambda: sums)
    sums = [ACTIVATIONS[activation](e, s) for s in sums]
    masks = e.add(e["mask"], pixels)

    def masked() -> Vector:
        return [e.keep(s, masks, offset) for (_, offset), s in zip(places, sums, strict=True)]

    return e.choose(e.nonzero(e["mask"]), masked, lambda: sums)
