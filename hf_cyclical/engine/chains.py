"""Convolutions and linear layers, and what follows them as part of the same operator: scale, residual, activation."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from .channelwise import by_channel, convolve_channels
from .copies import External
from .heads import matvec
from .layers import Convolution, Residual, as_phases, convolve
from .lowering import Lowering, Value
from .nodes import arguments, name_of
from .operators import IDENTITY, RELU, Activation
from .planes import Tensor
from .stems import convolve_stem, is_stem
from .views import ONE, Dim, View

__all__ = ["activation_of", "lower_convolution", "lower_linear", "norm_factors"]

PASSED = ("dropout", "alias", "contiguous", "clone", "detach")


def activation_of(node: Node) -> Activation | None:
    """The activation that a node applies, if it is one."""
    name = name_of(node)
    args = arguments(node) if name else {}
    if name in ("hardtanh", "clamp"):
        low, high = (args["min_val"], args["max_val"]) if name == "hardtanh" else (args["min"], args["max"])
        bounds = [-math.inf if low is None else low, math.inf if high is None else high]
        return Activation("clamp", *map(float, bounds)) if all(isinstance(b, (int, float)) for b in bounds) else None
    if name == "gelu":
        return Activation("gelu_tanh" if args["approximate"] == "tanh" else "gelu")
    simple = {"relu": RELU, "relu6": Activation("clamp", 0.0, 6.0)}
    simple |= {kind.replace("_", ""): Activation(kind) for kind in ("hard_swish", "hard_sigmoid")}
    simple |= {kind: Activation(kind) for kind in ("silu", "sigmoid", "tanh")}
    return simple.get(name)


def norm_factors(low: Lowering, args: dict[str, Any]) -> tuple[np.ndarray, np.ndarray] | None:
    """What a BatchNorm in eval mode multiplies each channel by, and adds to it."""
    mean, variance = low.constant(args["running_mean"]), low.constant(args["running_var"])
    if mean is None or variance is None or args["training"]:
        return None
    scale = 1 / np.sqrt(variance.astype(np.float64) + args["eps"])
    if args["weight"] is not None:
        scale = scale * low.constant(args["weight"])
    shift = -mean * scale
    if args["bias"] is not None:
        shift = shift + low.constant(args["bias"])
    return scale.astype(np.float32), shift.astype(np.float32)


@dataclass
class Chain:
    """What follows a layer and becomes part of it.

    Attributes:
        dims: The dimensions of the result.
        scale: Factor per output channel.
        shift: What is added, after the scale.
        residual: Planes to add.
        activation: Applied last.
        nodes: The nodes that are part of it.
    """

    low: Lowering
    dims: tuple[Dim, ...]
    scale: np.ndarray
    shift: np.ndarray
    residual: Residual | None = None
    activation: Activation = IDENTITY
    nodes: list[Node] = field(default_factory=list)

    def follow(self, node: Node, *, residuals: bool = True) -> None:
        """Take in the only user of a node, and its only user, as long as they fit."""
        while len(node.users) == 1:
            (user,) = node.users
            if not self._take(node, user, residuals):
                return
            self.nodes.append(user)
            node = user

    def _take(self, node: Node, user: Node, residuals: bool) -> bool:
        name = name_of(user)
        if name in PASSED:
            return name != "dropout" or not arguments(user)["train"]
        if name in ("permute", "transpose"):
            return self._reorder(user, name)
        if self.activation is not IDENTITY:
            return False
        if activation_of(user) is not None:
            self.activation = activation_of(user)
            return True
        if self.residual is not None:
            return False
        if name == "batch_norm":
            return self._normalize(user)
        if name == "mul":
            return self._multiply(node, user)
        return residuals and name == "add" and self._add(node, user)

    def _reorder(self, user: Node, name: str) -> bool:
        order = list(range(len(self.dims)))
        if name == "permute":
            order = list(user.args[1])
        else:
            a, b = user.args[1:]
            order[a], order[b] = order[b], order[a]
        self.dims = tuple(self.dims[i] for i in order)
        return True

    def _normalize(self, user: Node) -> bool:
        factors = norm_factors(self.low, arguments(user))
        if factors is None or self.dims[1].axis != "c":
            return False
        self.scale, self.shift = self.scale * factors[0], self.shift * factors[0] + factors[1]
        return True

    def _multiply(self, node: Node, user: Node) -> bool:
        args = arguments(user)
        other = args["other"] if args["self"] is node else args["self"]
        factor = self.low.values.get(other) if isinstance(other, Node) else None
        if not isinstance(factor, torch.Tensor):
            return False
        sizes = (1,) * (len(self.dims) - factor.dim()) + tuple(factor.shape)
        if any(size not in (1, dim.size if dim.axis == "c" else 1) for size, dim in zip(sizes, self.dims, strict=True)):
            return False
        factor = factor.detach().float().numpy().reshape(-1)
        self.scale, self.shift = self.scale * factor, self.shift * factor
        return True

    def _add(self, node: Node, user: Node) -> bool:
        args = arguments(user)
        other = args["other"] if args["self"] is node else args["self"]
        view = self.low.ahead(other) if isinstance(other, Node) else None
        if other is node or not isinstance(view, View) or args["alpha"] != 1 or view.dims != self.dims:
            return False
        if any(view.border) or not view.simple or view.channel:
            return False
        channels = view.tensor.shape[0]
        if view.channels != channels + sum(view.zeros):
            return False
        tensor = view.tensor
        if view.step != (1, 1):
            phases = self.low.split(tensor, view.step)
            phases.needed.add((0, 0))
            tensor = phases.tensor
        elif isinstance(tensor, External):
            tensor, _ = self.low.settled(view)
        if tensor.layout.flat:
            return False
        self.residual = Residual(tensor, channels, view.zeros[0])
        return True


def _chain(low: Lowering, node: Node, dims: tuple[Dim, ...], outputs: int, bias: Any, residuals: bool = True) -> Chain:
    shift = np.zeros(outputs, np.float32) if bias is None else low.constant(bias)
    chain = Chain(low, dims, np.ones(outputs, np.float32), shift)
    chain.follow(node, residuals=residuals)
    return chain


def _finish(low: Lowering, chain: Chain, tensor: Any) -> View:
    view = View(tensor, chain.dims)
    for node in chain.nodes:
        low.values[node] = view
        low.done.add(node)
    return view


def lower_convolution(low: Lowering, node: Node) -> Value:
    """A 2-d convolution of an image."""
    view, args = low.view(node.args[0]), arguments(node)
    weight = low.constant(args["weight"])
    if view is None or weight is None:
        return None
    if view.axes in ("c", "") and weight.shape[2:] == (1, 1) and args["groups"] == 1 and len(view.dims) == 4:
        return _on_vector(low, node, view, weight[:, :, 0, 0], (Dim("1", 1), Dim("c", len(weight)), ONE, ONE))
    if "".join(dim.axis for dim in view.dims) != "1chw" or (
        isinstance(view.tensor, Tensor) and view.tensor.layout.flat
    ):
        return None
    if len(view.dims) != 4 or not view.simple or any(view.zeros) or view.step != (1, 1):
        return None
    stride, dilation = tuple(args["stride"]), tuple(args["dilation"])
    padding = _padding(args["padding"], weight.shape[2:], dilation)
    padding = (padding[0] + view.border[0], padding[1] + view.border[2])
    view = replace(view, border=(0, 0, 0, 0), dims=_unpadded(view))
    size = tuple(int(n) for n in node.meta["val"].shape[2:])
    dims = (Dim("1", 1), Dim("c", len(weight)), Dim("h", size[0]), Dim("w", size[1]))
    chain = _chain(low, node, dims, len(weight), args["bias"])
    scaled = weight * chain.scale[:, None, None, None]
    layer = Convolution(
        low.layer_name(args["weight"]), scaled, chain.shift, size, stride, padding, dilation, args["groups"]
    )
    if chain.residual is None and by_channel(layer):
        return _finish(low, chain, convolve_channels(low.plan, low.planes(view), layer, chain.activation))
    source = view.tensor if stride != (1, 1) and view.complete else low.planes(view)
    if stride != (1, 1):
        source = low.split(source, stride)
    if chain.residual is None and is_stem(layer):
        return _finish(low, chain, convolve_stem(low.plan, as_phases(low.plan, source), layer, chain.activation))
    return _finish(low, chain, convolve(low.plan, source, layer, chain.residual, chain.activation))


def _unpadded(view: View) -> tuple[Dim, ...]:
    sizes = dict(zip("hw", view.tensor.shape[1:], strict=True))
    return tuple(replace(dim, size=sizes.get(dim.axis, dim.size)) for dim in view.dims)


def _padding(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, int]:
    if padding == "valid":
        return 0, 0
    if padding == "same":
        return tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
    return tuple(padding)


def lower_linear(low: Lowering, node: Node) -> Value:
    """A linear layer on tokens, on the pixels of an image, or on one vector."""
    view, args = low.view(node.args[0], tokens=True), arguments(node)
    weight = low.constant(args["weight"])
    if view is None or weight is None or view.dims[-1].axis != "c":
        return None
    tensor = low.planes(view)
    if tensor is None or tensor.shape[0] != weight.shape[1]:
        return None
    dims = (*view.dims[:-1], Dim("c", len(weight)))
    if tensor.shape[1:] == (1, 1):
        return _on_vector(low, node, view, weight, dims)
    chain = _chain(low, node, dims, len(weight), args["bias"])
    scaled = weight * chain.scale[:, None]
    layer = Convolution(low.layer_name(args["weight"]), scaled[:, :, None, None], chain.shift, tensor.shape[1:])
    return _finish(low, chain, convolve(low.plan, tensor, layer, chain.residual, chain.activation))


def _on_vector(low: Lowering, node: Node, view: View, weight: np.ndarray, dims: tuple[Dim, ...]) -> Value:
    """A layer on one pixel."""
    args, tensor = arguments(node), low.planes(view)
    if tensor is None or tensor.shape != (weight.shape[1], 1, 1):
        return None
    chain = _chain(low, node, dims, len(weight), args["bias"], residuals=False)
    name, scaled = low.layer_name(args["weight"]), weight * chain.scale[:, None]
    return _finish(low, chain, matvec(low.plan, name, tensor, scaled, chain.shift, chain.activation))
