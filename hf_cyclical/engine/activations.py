"""Activation functions on vectors, as LLVM IR: polynomials instead of calls, since a vector has no libm."""

import math
from collections.abc import Callable

from llvmlite import ir

from .emitter import I32, Emitter, Value

__all__ = ["ACTIVATIONS", "exponential"]

LOG2_E = 1 / math.log(2)
# exp(r) = 1 + r + r^2 * (c0 + c1 * r + ...) for |r| <= ln(2) / 2, to 1e-7.
EXP = (0.5, 1 / 6, 1 / 24, 1 / 120, 1 / 720)
# Abramowitz and Stegun 7.1.26: 1 - erf(x) = t * (c0 + c1 * t + ...) * exp(-x^2), to 1.5e-7.
ERF_T = 0.3275911
ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def exponential(e: Emitter, x: Value) -> Value:
    """exp(x), with x in the range of float's exponents."""
    ints = ir.VectorType(I32, e.width)
    # Not below -87: 2^n is built in the exponent's bits, which end at -126.
    x = e.at_most(e.at_least(x, e.splat(-87.0)), e.splat(88.0))
    half = e.b.select(e.b.fcmp_ordered("<", x, e.splat(0.0)), e.splat(-0.5), e.splat(0.5))
    n = e.b.fptosi(e.fma(x, e.splat(LOG2_E), half), ints)
    real = e.b.sitofp(n, e.vector)
    # ln(2) in two parts, the first one with few bits, so that n times it is exact.
    r = e.fma(real, e.splat(-0.693359375), x)
    r = e.fma(real, e.splat(2.12194440e-4), r)
    power = e.fma(e.b.fmul(r, r), _polynomial(e, r, EXP), e.b.fadd(r, e.splat(1.0)))
    bits = e.b.shl(e.b.add(n, ir.Constant(ints, [127] * e.width)), ir.Constant(ints, [23] * e.width))
    return e.b.fmul(power, e.b.bitcast(bits, e.vector))


def _polynomial(e: Emitter, x: Value, coefficients: tuple[float, ...]) -> Value:
    value = e.splat(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = e.fma(value, x, e.splat(c))
    return value


def _clamp(e: Emitter, x: Value) -> Value:
    """Between the row's `low` and `high`: nothing at all, ReLU and ReLU6 are all of this kind."""
    return e.at_most(e.at_least(x, e.splat(e.real("low"))), e.splat(e.real("high")))


def _sigmoid(e: Emitter, x: Value) -> Value:
    return e.b.fdiv(e.splat(1.0), e.b.fadd(e.splat(1.0), exponential(e, e.b.fneg(x))))


def _silu(e: Emitter, x: Value) -> Value:
    return e.b.fmul(x, _sigmoid(e, x))


def _hard_sigmoid(e: Emitter, x: Value) -> Value:
    shifted = e.at_most(e.at_least(e.b.fadd(x, e.splat(3.0)), e.splat(0.0)), e.splat(6.0))
    return e.b.fmul(shifted, e.splat(1 / 6))


def _hard_swish(e: Emitter, x: Value) -> Value:
    return e.b.fmul(x, _hard_sigmoid(e, x))


def _tanh(e: Emitter, x: Value) -> Value:
    both = _sigmoid(e, e.b.fadd(x, x))
    return e.b.fsub(e.b.fadd(both, both), e.splat(1.0))


def _gelu_tanh(e: Emitter, x: Value) -> Value:
    cubic = e.fma(e.b.fmul(e.b.fmul(x, x), x), e.splat(0.044715), x)
    return e.b.fmul(x, _sigmoid(e, e.b.fmul(cubic, e.splat(2 * math.sqrt(2 / math.pi)))))


def _gelu(e: Emitter, x: Value) -> Value:
    """GELU as x * P(normal <= x), with the tail's formula on either side, so that nothing cancels."""
    y = e.b.fmul(x, e.splat(math.sqrt(0.5)))
    y = e.b.select(e.b.fcmp_ordered("<", y, e.splat(0.0)), e.b.fneg(y), y)
    t = e.b.fdiv(e.splat(1.0), e.fma(y, e.splat(ERF_T), e.splat(1.0)))
    tail = e.b.fmul(e.b.fmul(t, _polynomial(e, t, ERF)), exponential(e, e.b.fneg(e.b.fmul(y, y))))
    tail = e.b.fmul(tail, e.splat(0.5))
    left = e.b.fcmp_ordered("<", x, e.splat(0.0))
    return e.b.fmul(x, e.b.select(left, tail, e.b.fsub(e.splat(1.0), tail)))


ACTIVATIONS: dict[str, Callable[[Emitter, Value], Value]] = {
    "clamp": _clamp,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _hard_swish,
    "tanh": _tanh,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
