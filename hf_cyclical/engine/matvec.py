"""The kernels for a linear layer on one vector, such as a classifier's head: dense by lanes, or sparse by pairs."""

from .activations import ACTIVATIONS
from .emitter import BYTES, F32, Emitter, Value, Vector

__all__ = ["MATVEC", "emit_dense_matvec", "emit_sparse_matvec"]

MATVEC = (
    "source",
    "source_stride",  # bytes from one input to the next
    "target",  # floats, side by side
    "inputs",
    "outputs",  # dense: divided by those that are computed at once
    "starts",  # sparse: int32 per output, in bytes
    "weights",  # dense: for each group of outputs, for each input, one float per output; sparse: pairs
    "bias",
    "low",
    "high",
)
CHAINS = 4  # sums of a sparse output that do not wait for each other; its pairs come in this number


def emit_dense_matvec(e: Emitter, tile: int, activation: str) -> None:
    """Groups of `tile` vectors of outputs, over all inputs."""
    group_bytes = tile * e.vector_bytes

    def group(index: Value) -> None:
        at = e.mul(index, group_bytes)
        sums = [e.load(e.add(e["bias"], at), j * e.vector_bytes) for j in range(tile)]
        start = e.add(e["weights"], e.mul(at, e["inputs"]))

        def column(i: Value, acc: Vector) -> Vector:
            x = e.splat(e.load_float(e.add(e["source"], e.mul(i, e["source_stride"]))))
            weights = e.add(start, e.mul(i, group_bytes))
            return [e.fma(e.load(weights, j * e.vector_bytes), x, a) for j, a in enumerate(acc)]

        sums = e.loop(0, e["inputs"], 1, sums, column)
        for j, value in enumerate(sums):
            e.store(ACTIVATIONS[activation](e, value), e.add(e["target"], at), j * e.vector_bytes)

    e.each(*e.share(e["outputs"]), group)
    e.end()


def emit_sparse_matvec(e: Emitter, activation: str) -> None:
    """One output after the other: the sum of its pairs of (int32 offset, float weight)."""

    def output(index: Value) -> None:
        start = e.add(e["starts"], e.mul(index, BYTES))
        first, last = (e.add(e["weights"], e.load_int(start, i * BYTES)) for i in range(2))

        def pairs(address: Value, acc: Vector) -> Vector:
            terms = []
            for j, a in enumerate(acc):
                x = e.load_float(e.add(e["source"], e.load_int(address, 2 * j * BYTES)))
                terms.append(e.fma(x, e.load_float(address, (2 * j + 1) * BYTES), a))
            return terms

        zeros = [F32(0.0) for _ in range(CHAINS - 1)]
        bias = e.load_float(e.add(e["bias"], e.mul(index, BYTES)))
        a, b, c, d = e.loop(first, last, 2 * CHAINS * BYTES, [bias, *zeros], pairs)
        value = ACTIVATIONS[activation](e, e.splat(e.b.fadd(e.b.fadd(a, b), e.b.fadd(c, d))))
        e.store(e.first(value), e.add(e["target"], e.mul(index, BYTES)))

    e.each(*e.share(e["outputs"]), output)
    e.end()
