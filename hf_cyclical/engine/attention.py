"""The kernel of softmax attention on planes: features are planes, tokens are pixels, so queries are the lanes."""

from .activations import exponential
from .emitter import BYTES, Emitter, Value, Vector

__all__ = ["ATTENTION", "ROWS", "emit_attention"]

ATTENTION = (
    "query",
    "query_stride",  # bytes from one feature to the next
    "key",
    "key_stride",
    "value",
    "value_stride",
    "target",
    "target_stride",
    "heads",
    "features",  # of a head
    "tokens",
    "tiles",  # of queries
    "scale",
    "scratch",  # a tile's scores, for each thread
    "scratch_bytes",  # per thread
    "mask",
)
ROWS = 4  # keys, then features, at once


def emit_attention(e: Emitter, tile: int) -> None:
    """softmax(scale * keys . queries) over keys, times values, head by head and tile by tile of queries."""
    pitch = tile * e.vector_bytes
    scores = e.add(e["scratch"], e.mul(e.rank, e["scratch_bytes"]))

    def work(index: Value) -> None:
        head, part = e.b.udiv(index, e["tiles"]), e.b.urem(index, e["tiles"])
        feature, queries = e.mul(head, e["features"]), e.mul(part, pitch)
        query, key, value, target = (
            e.add(e[name], e.mul(feature, e[f"{name}_stride"])) for name in ("query", "key", "value", "target")
        )
        query, target, mask = (e.add(address, queries) for address in (query, target, e["mask"]))

        def score(row: Value) -> None:
            keys = e.add(key, e.mul(row, BYTES))
            sums = _product(e, tile, e["features"], (query, e["query_stride"]), (keys, e["key_stride"], e.i(BYTES)))
            at = e.add(scores, e.mul(row, pitch))
            for m in range(ROWS):
                for j in range(tile):
                    e.store(sums[m * tile + j], at, m * pitch + j * e.vector_bytes)

        e.each(0, e["tokens"], score, ROWS)
        factors = _softmax(e, tile, scores)

        def feature_rows(row: Value) -> None:
            values = e.add(value, e.mul(row, e["value_stride"]))
            sums = _product(e, tile, e["tokens"], (scores, e.i(pitch)), (values, e.i(BYTES), e["value_stride"]))
            for m in range(ROWS):
                at = e.add(target, e.mul(e.add(row, m), e["target_stride"]))
                for j in range(tile):
                    share = e.b.fmul(sums[m * tile + j], factors[j])
                    e.store(e.keep(share, mask, j * e.vector_bytes), at, j * e.vector_bytes)

        e.each(0, e["features"], feature_rows, ROWS)

    e.each(*e.share(e.mul(e["heads"], e["tiles"])), work)
    e.end()


def _product(
    e: Emitter, tile: int, depth: Value, vectors: tuple[Value, Value], factors: tuple[Value, Value, Value]
) -> Vector:
    """ROWS x tile sums over k of vectors[k] * factors[k, row]."""
    (vector, vector_step), (factor, factor_step, row_step) = vectors, factors

    def term(k: Value, acc: Vector) -> Vector:
        at = e.add(vector, e.mul(k, vector_step))
        loaded = [e.load(at, j * e.vector_bytes) for j in range(tile)]
        base = e.add(factor, e.mul(k, factor_step))
        acc = list(acc)
        for m in range(ROWS):
            x = e.splat(e.load_float(e.add(base, e.mul(row_step, m))))
            for j in range(tile):
                acc[m * tile + j] = e.fma(loaded[j], x, acc[m * tile + j])
        return acc

    return e.loop(0, depth, 1, [e.splat(0.0)] * (ROWS * tile), term)


def _softmax(e: Emitter, tile: int, scores: Value) -> Vector:
    """Replace scores by exp(scale * (score - largest)), and return one by their sums."""
    pitch = tile * e.vector_bytes
    scale = e.splat(e.real("scale"))

    def at(row: Value) -> Value:
        return e.add(scores, e.mul(row, pitch))

    def largest(row: Value, acc: Vector) -> Vector:
        return [e.at_least(e.load(at(row), j * e.vector_bytes), a) for j, a in enumerate(acc)]

    start = [e.splat(float("-inf"))] * tile
    tops = e.loop(0, e["tokens"], 1, start, largest)

    def power(row: Value, acc: Vector) -> Vector:
        sums = []
        for j, a in enumerate(acc):
            difference = e.b.fsub(e.load(at(row), j * e.vector_bytes), tops[j])
            value = exponential(e, e.b.fmul(difference, scale))
            e.store(value, at(row), j * e.vector_bytes)
            sums.append(e.b.fadd(a, value))
        return sums

    sums = e.loop(0, e["tokens"], 1, [e.splat(0.0)] * tile, power)
    return [e.b.fdiv(e.splat(1.0), total) for total in sums]
