"""The kernels without weights of their own to multiply by: sums, products, pooling, normalization."""

from .activations import ACTIVATIONS
from .emitter import BYTES, F32, Emitter, Value, Vector

__all__ = ["COMBINE", "MAXIMUM", "MEAN", "NORM", "emit_combine", "emit_maximum", "emit_mean", "emit_norm"]

COMBINE = (
    "first",
    "first_stride",  # bytes from one plane to the next
    "second",
    "second_stride",
    "target",
    "target_stride",
    "planes",
    "vectors",
    "mask",
    "low",
    "high",
)
_PLANES = ("source", "source_stride", "target", "target_stride", "planes", "vectors")
MAXIMUM = (*_PLANES, "mask", "offsets")
MEAN = (
    *_PLANES,
    "bands",
    "band_bytes",
    "mask",  # of all bands but the last
    "last_mask",
    "factor",
)
NORM = (
    *_PLANES,
    "mask",
    "weight",
    "bias",
    "epsilon",
    "factor",  # one by the number of planes
)


def emit_combine(e: Emitter, operation: str, activation: str) -> None:
    """Store activation(first operation second), where `scale` takes one factor per plane and `only` no second."""

    def plane(index: Value) -> None:
        first, second, target = (
            e.add(e[name], e.mul(index, e[f"{name}_stride"])) for name in ("first", "second", "target")
        )
        factor = e.splat(e.load_float(second)) if operation == "scale" else None

        def vector(offset: Value) -> None:
            value = e.load(e.add(first, offset))
            if operation == "add":
                value = e.b.fadd(value, e.load(e.add(second, offset)))
            elif operation == "multiply":
                value = e.b.fmul(value, e.load(e.add(second, offset)))
            elif factor is not None:
                value = e.b.fmul(value, factor)
            value = _masked(e, ACTIVATIONS[activation](e, value), offset)
            e.store(value, e.add(target, offset))

        e.each(0, e.mul(e["vectors"], e.vector_bytes), vector, e.vector_bytes)

    e.each(*e.share(e["planes"]), plane)
    e.end()


def _masked(e: Emitter, value: Value, offset: Value) -> Value:
    def masked() -> Vector:
        return [e.keep(value, e.add(e["mask"], offset))]

    return e.choose(e.nonzero(e["mask"]), masked, lambda: [value])[0]


def emit_maximum(e: Emitter, taps: int) -> None:
    """The largest of several pixels at constant offsets: max pooling on padded planes."""
    offsets = [e.load_int(e["offsets"], i * BYTES) for i in range(taps)]

    def plane(index: Value) -> None:
        source, target = (e.add(e[name], e.mul(index, e[f"{name}_stride"])) for name in ("source", "target"))

        def vector(offset: Value) -> None:
            at = e.add(source, offset)
            value = e.load(e.add(at, offsets[0]))
            for tap in offsets[1:]:
                value = e.larger_of(e.load(e.add(at, tap)), value)
            e.store(_masked(e, value, offset), e.add(target, offset))

        e.each(0, e.mul(e["vectors"], e.vector_bytes), vector, e.vector_bytes)

    e.each(*e.share(e["planes"]), plane)
    e.end()


def emit_mean(e: Emitter) -> None:
    """The sum of each plane times a factor, where what is after a band's last row may be the next band's."""

    def plane(index: Value) -> None:
        source, target = (e.add(e[name], e.mul(index, e[f"{name}_stride"])) for name in ("source", "target"))

        def band(index: Value, carry: Vector) -> Vector:
            pixels = e.add(source, e.mul(index, e["band_bytes"]))
            mask = e.b.select(e.equal(e.add(index, 1), e["bands"]), e["last_mask"], e["mask"])

            def vector(offset: Value, sums: Vector) -> Vector:
                return [e.b.fadd(sums[0], e.keep(e.load(e.add(pixels, offset)), e.add(mask, offset)))]

            return e.loop(0, e.mul(e["vectors"], e.vector_bytes), e.vector_bytes, carry, vector)

        (total,) = e.loop(0, e["bands"], 1, [e.splat(0.0)], band)
        e.store(e.b.fmul(e.total(total), e.real("factor")), target)

    e.each(*e.share(e["planes"]), plane)
    e.end()


def emit_norm(e: Emitter) -> None:
    """LayerNorm over the channels of each pixel: mean, then deviations, then the result."""
    factor = e.splat(e.real("factor"))
    zero = e.splat(0.0)

    def vector(index: Value) -> None:
        offset = e.mul(index, e.vector_bytes)
        source, target = e.add(e["source"], offset), e.add(e["target"], offset)

        def over_planes(term) -> Value:
            def one(plane: Value, carry: Vector) -> Vector:
                return [term(e.load(e.add(source, e.mul(plane, e["source_stride"]))), carry[0])]

            return e.loop(0, e["planes"], 1, [zero], one)[0]

        mean = e.b.fmul(over_planes(lambda x, total: e.b.fadd(x, total)), factor)

        def square(x: Value, total: Value) -> Value:
            deviation = e.b.fsub(x, mean)
            return e.fma(deviation, deviation, total)

        variance = e.fma(over_planes(square), factor, e.splat(e.real("epsilon")))
        scale = e.b.fdiv(e.splat(1.0), e.sqrt(variance))

        def write(plane: Value) -> None:
            x = e.load(e.add(source, e.mul(plane, e["source_stride"])))
            weight, bias = (
                e.splat(e.load(e.add(e[name], e.mul(plane, BYTES)), kind=F32)) for name in ("weight", "bias")
            )
            value = e.fma(e.b.fmul(e.b.fsub(x, mean), scale), weight, bias)
            e.store(_masked(e, value, offset), e.add(target, e.mul(plane, e["target_stride"])))

        e.each(0, e["planes"], write)

    e.each(*e.share(e["vectors"]), vector)
    e.end()
