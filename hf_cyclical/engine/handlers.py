"""What each operation of torch becomes. A handler that returns None leaves the node to torch."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from .chains import activation_of, lower_convolution, lower_linear, norm_factors
from .channelwise import by_channel, convolve_channels, pool_windows, pools_in_place
from .copies import copy_into
from .heads import attend
from .layers import Convolution, convolve
from .lowering import Lowering, Value
from .nodes import arguments
from .operators import combine, max_pool, mean, norm
from .planes import Tensor
from .view_handlers import VIEW_HANDLERS
from .views import ONE, Dim, View, image

__all__ = ["HANDLERS"]


def _activate(low: Lowering, node: Node) -> Value:
    view, activation = low.view(node.args[0]), activation_of(node)
    tensor = low.planes(view)
    if tensor is None or activation is None:
        return None
    return replace(view, tensor=combine(low.plan, "only", tensor, None, activation), channel=0)


def _add(low: Lowering, node: Node) -> Value:
    args = arguments(node)
    return _combined(low, "add", args["self"], args["other"]) if args.get("alpha", 1) == 1 else None


def _multiply(low: Lowering, node: Node) -> Value:
    args = arguments(node)
    first, second = (low.view(args[name]) for name in ("self", "other"))
    for whole, factor in ((first, second), (second, first)):
        if whole is None or factor is None or whole.axes != "chw" or factor.axes != "c":
            continue
        tensor, scales = low.planes(whole), low.planes(factor)
        if tensor is None or scales is None or scales.shape[0] != tensor.shape[0]:
            return None
        return replace(whole, tensor=combine(low.plan, "scale", tensor, scales))
    return _combined(low, "multiply", args["self"], args["other"])


def _combined(low: Lowering, operation: str, a: Any, b: Any) -> Value:
    """Of two tensors of the same shape, one of which may be a constant."""
    first, second = low.view(a), low.view(b)
    if first is None:
        first, second, a, b = second, first, b, a
    constant = low.get(b)
    if first is None:
        return None
    tensor = low.planes(first)
    same = second is not None and first.dims == second.dims
    other = low.planes(second) if same else _as_planes(first, constant)
    if tensor is None or other is None or tensor.layout.flat != (isinstance(other, Tensor) and other.layout.flat):
        return None
    return replace(first, tensor=combine(low.plan, operation, tensor, other), channel=0, border=(0,) * 4, zeros=(0, 0))


def _as_planes(view: View, constant: Any) -> np.ndarray | None:
    """A constant as (channels, height, width) of a view that it has the shape of, or can be expanded to."""
    if not isinstance(constant, torch.Tensor) or not constant.is_floating_point() or not view.complete:
        return None
    try:
        expanded = constant.detach().float().expand(view.shape)
    except RuntimeError:
        return None
    order = sorted(
        (i for i, dim in enumerate(view.dims) if dim.size > 1), key=lambda i: "chwp".index(view.dims[i].axis)
    )
    rest = [i for i, dim in enumerate(view.dims) if dim.size == 1]
    return expanded.permute(rest + order).reshape(view.tensor.shape).numpy()


def _batch_norm(low: Lowering, node: Node) -> Value:
    """One that no convolution could take in: a weight per channel."""
    args, tensor = arguments(node), low.planes(low.view(node.args[0]))
    factors = norm_factors(low, args)
    if tensor is None or factors is None or len(node.meta["val"].shape) != 4:
        return None
    scale, shift = factors
    channels, height, width = tensor.shape
    weight = scale.reshape(channels, 1, 1, 1)
    layer = Convolution("batch norm", weight, shift, (height, width), groups=channels)
    return image(convolve(low.plan, tensor, layer))


def _mean(low: Lowering, node: Node) -> Value:
    view, args = low.view(node.args[0]), arguments(node)
    if view is None or args.get("dtype") is not None or args["dim"] is None:
        return None
    gone = {dim % len(view.dims) for dim in args["dim"]}
    axes = "".join(view.dims[i].axis for i in sorted(gone) if view.dims[i].size > 1)
    return _averaged(low, view, gone, args["keepdim"]) if axes in ("", "hw", "p") else None


def _averaged(low: Lowering, view: View, gone: set[int], keep: bool) -> Value:
    tensor = low.planes(view)
    if tensor is None or any(dim.axis in "hwp" and dim.size > 1 and i not in gone for i, dim in enumerate(view.dims)):
        return None
    dims = [ONE if i in gone else dim for i, dim in enumerate(view.dims) if keep or i not in gone]
    if tensor.shape[1:] == (1, 1):
        return View(tensor, tuple(dims))
    return View(mean(low.plan, tensor), tuple(dims))


def _adaptive_average(low: Lowering, node: Node) -> Value:
    view = low.view(node.args[0])
    if view is None or tuple(node.args[1]) != (1, 1) or len(view.dims) != 4:
        return None
    return _averaged(low, view, {2, 3}, True)


def _pair(value: Any, default: Any = None) -> tuple[int, int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    values = values or list(default)
    return (values[0], values[-1])


def _max_pool(low: Lowering, node: Node) -> Value:
    view, args = low.view(node.args[0]), arguments(node)
    if view is None or view.axes != "chw" or not view.complete or _pair(args["dilation"]) != (1, 1):
        return None
    kernel = _pair(args["kernel_size"])
    stride, padding = _pair(args["stride"], kernel), _pair(args["padding"])
    size = tuple(node.meta["val"].shape[2:])
    if pools_in_place(view.tensor, stride):
        return image(pool_windows(low.plan, view.tensor, kernel, stride[0], padding, size))
    return image(max_pool(low.plan, view.tensor, kernel, stride, padding, size))


def _average_pool(low: Lowering, node: Node) -> Value:
    """As a convolution by equal weights, channel by channel; of single pixels, as a view of some of them."""
    view, args = low.view(node.args[0]), arguments(node)
    kernel = _pair(args["kernel_size"])
    stride, padding = _pair(args["stride"], kernel), _pair(args["padding"])
    outside = any(padding) and not args["count_include_pad"]
    if view is None or view.axes != "chw" or not view.complete or outside:
        return None
    if kernel == (1, 1) and not any(padding) and not args["ceil_mode"] and args["divisor_override"] is None:
        sizes = node.meta["val"].shape
        return replace(view, dims=tuple(replace(d, size=n) for d, n in zip(view.dims, sizes, strict=True)), step=stride)
    channels, *extent = view.tensor.shape
    if args["ceil_mode"] and any(
        (n + 2 * p - k) % s for n, p, k, s in zip(extent, padding, kernel, stride, strict=True)
    ):
        return None  # a last window that is not all inside
    divisor = args["divisor_override"] or kernel[0] * kernel[1]
    weight = np.full((channels, 1, *kernel), 1 / divisor, np.float32)
    size = tuple(node.meta["val"].shape[2:])
    layer = Convolution("average pool", weight, np.zeros(channels, np.float32), size, stride, padding, groups=channels)
    if by_channel(layer):
        return image(convolve_channels(low.plan, low.planes(view), layer))
    source = view.tensor if stride == (1, 1) else low.split(view.tensor, stride)
    return image(convolve(low.plan, source, layer))


def _layer_norm(low: Lowering, node: Node) -> Value:
    view, args = low.view(node.args[0]), arguments(node)
    if view is None or len(args["normalized_shape"]) != 1 or view.dims[-1].axis != "c":
        return None
    tensor = low.planes(view)
    if tensor is None or tensor.layout.flat or view.dims[-1].size != tensor.shape[0]:
        return None
    channels = tensor.shape[0]
    weight = np.ones(channels, np.float32) if args["weight"] is None else low.constant(args["weight"])
    bias = np.zeros(channels, np.float32) if args["bias"] is None else low.constant(args["bias"])
    if weight is None or bias is None:
        return None
    return replace(view, tensor=norm(low.plan, tensor, weight, bias, args["eps"]), channel=0)


def _concatenate(low: Lowering, node: Node) -> Value:
    """Tokens after constant ones, or channels after channels."""
    args, shape = arguments(node), tuple(node.meta["val"].shape)
    dim = args["dim"] % len(shape)
    parts = [low.get(part) for part in args["tensors"]]
    views = [low.view(part) if not isinstance(low.get(part), torch.Tensor) else None for part in args["tensors"]]
    known = next(view for view in views if view is not None)
    axis = known.dims[dim].axis
    template = tuple(replace(d, size=shape[i], stride=1) for i, d in enumerate(known.dims))
    if axis not in "pc" or any(v is not None and (v.axes != known.axes or not v.simple) for v in views):
        return None
    if axis == "c" and any(view is None for view in views):
        return None
    tensors = [low.planes(view) for view in views]
    if any(t is None and v is not None for t, v in zip(tensors, views, strict=True)):
        return None
    if any(t is not None and t.layout.flat for t in tensors):
        return None
    sizes = [part.shape[dim] for part in parts]
    return _joined(low, View(known.tensor, template), axis, parts, tensors, sizes)


def _joined(low: Lowering, view: View, axis: str, parts: list[Any], tensors: list[Any], sizes: list[int]) -> Value:
    channels, pixels = (math.prod(d.size for d in view.dims if d.axis in axes) for axes in ("c", "hwp"))
    first = next(t for t in tensors if t is not None)
    size, rows = ((1, pixels), 0) if axis == "p" else (first.shape[1:], first.layout.band_rows)
    target = low.plan.tensor(channels, *size, exclusive=True, band_rows=rows)
    view = replace(view, tensor=target, channel=0)
    constant, start = torch.zeros(view.shape), 0
    dim = next(i for i, d in enumerate(view.dims) if d.axis == axis)
    for part, tensor, size in zip(parts, tensors, sizes, strict=True):
        if tensor is None:
            constant.narrow(dim, start, size).copy_(part)
        else:
            place = {"column": start} if axis == "p" else {"channel": start}
            copy_into(low.plan, tensor, target, tensor.shape[0], **place)
        start += size
    if not constant.any():
        return view
    # What is copied is 0 in the constant, and the other way round.
    return replace(view, tensor=combine(low.plan, "add", target, _as_planes(view, constant)))


def _attention(low: Lowering, node: Node) -> Value:
    args = arguments(node)
    views = [low.view(args[name]) for name in ("query", "key", "value")]
    mask = low.get(args["attn_mask"])
    unmasked = mask is None or (isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and bool(mask.all()))
    if None in views or not unmasked or args["is_causal"] or args["dropout_p"] or args.get("enable_gqa"):
        return None
    if len({view.dims for view in views}) > 1 or any(isinstance(v.tensor, type(None)) for v in views):
        return None
    dims = views[0].dims
    if len(dims) != 4 or dims[2].axis != "p" or dims[1].axis not in "c1" or dims[3] != Dim("c", dims[3].size, 1):
        return None
    heads, features = dims[1].size, dims[3].size
    if features % 4 or (heads > 1 and dims[1].stride != features) or dims[2].size < 2:
        return None
    settled = [low.settled(view) for view in views]
    scale = args["scale"] if args["scale"] is not None else features**-0.5
    ends = [(tensor, view.channel) for tensor, view in settled]
    target = attend(low.plan, *ends, heads=heads, features=features, scale=scale)
    return View(target, (ONE, replace(dims[1], stride=features), dims[2], dims[3]))


HANDLERS: dict[str, Callable[[Lowering, Node], Value]] = {
    **VIEW_HANDLERS,
    "conv2d": lower_convolution,
    "linear": lower_linear,
    "add": _add,
    "mul": _multiply,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "scaled_dot_product_attention": _attention,
    "max_pool2d": _max_pool,
    "avg_pool2d": _average_pool,
    "adaptive_avg_pool2d": _adaptive_average,
    "mean": _mean,
    "cat": _concatenate,
    **dict.fromkeys(("relu", "relu6", "hardtanh", "clamp", "silu", "sigmoid", "tanh", "gelu"), _activate),
    **dict.fromkeys(("hardswish", "hardsigmoid"), _activate),
}
