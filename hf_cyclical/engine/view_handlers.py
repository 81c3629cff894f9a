"""What becomes of operations that only look at their input in another way. None leaves the node to torch."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch.fx import Node

from .copies import flatten, take_column
from .lowering import Lowering, Value
from .nodes import arguments
from .views import Dim, View, permute, reshape, select

__all__ = ["VIEW_HANDLERS"]


def _same(low: Lowering, node: Node) -> Value:
    return low.get(node.args[0])


def _to(low: Lowering, node: Node) -> Value:
    value = node.meta["val"]
    return low.get(node.args[0]) if value.dtype == torch.float32 and value.device.type == "cpu" else None


def _expand(low: Lowering, node: Node) -> Value:
    view = low.get(node.args[0])
    return view if isinstance(view, View) and view.shape == tuple(node.meta["val"].shape) else None


def _dropout(low: Lowering, node: Node) -> Value:
    args = arguments(node)
    return None if args["train"] and args["p"] else low.get(node.args[0])


def _permute(low: Lowering, node: Node) -> Value:
    view = low.get(node.args[0])
    return permute(view, node.args[1]) if isinstance(view, View) else None


def _transpose(low: Lowering, node: Node) -> Value:
    view, (a, b) = low.get(node.args[0]), node.args[1:]
    if not isinstance(view, View):
        return None
    order = list(range(len(view.dims)))
    order[a], order[b] = order[b], order[a]
    return permute(view, order)


def _reshape(low: Lowering, node: Node) -> Value:
    view = low.get(node.args[0])
    if not isinstance(view, View):
        return None
    result = reshape(view, tuple(node.meta["val"].shape))
    if result is not None and any(dim.axis == "p" for dim in result.dims) and "h" in view.axes:
        tensor = low.planes(view)
        return None if tensor is None else replace(result, tensor=flatten(low.plan, tensor), channel=0)
    return result


def _select(low: Lowering, node: Node) -> Value:
    view, (dim, index) = low.get(node.args[0]), node.args[1:]
    if not isinstance(view, View):
        return None
    if view.dims[dim].axis == "p" and view.dims[dim].size > 1:
        tensor = low.planes(view)
        if tensor is None:
            return None
        dim %= len(view.dims)
        column = take_column(low.plan, tensor, index % view.dims[dim].size)
        return View(column, view.dims[:dim] + view.dims[dim + 1 :])
    return select(view, dim, index)


def _unbind(low: Lowering, node: Node) -> Value:
    view, dim = low.get(node.args[0]), arguments(node)["dim"]
    if not isinstance(view, View):
        return None
    parts = [select(view, dim, i) for i in range(view.shape[dim])]
    return None if None in parts else parts


def _slice(low: Lowering, node: Node) -> Value:
    view, args = low.view(node.args[0]), arguments(node)
    if view is None:
        return None
    dim = args["dim"] % len(view.dims)
    chosen, size = view.dims[dim], node.meta["val"].shape[dim]
    step, start = args["step"], args["start"] or 0
    if size == chosen.size and step == 1:
        return view
    dims = (*view.dims[:dim], Dim(chosen.axis, size, chosen.stride), *view.dims[dim + 1 :])
    if chosen.axis == "c" and step == 1 and view.plain:
        return replace(view, dims=dims, channel=view.channel + start % chosen.size * chosen.stride)
    everything = start == 0 and size == -(-chosen.size // step)
    if chosen.axis in "hw" and everything and view.border == (0, 0, 0, 0) and view.complete | (view.step != (1, 1)):
        axis = "hw".index(chosen.axis)
        if view.step[axis] == 1:
            return replace(view, dims=dims, step=(step, view.step[1]) if axis == 0 else (view.step[0], step))
    return None


def _pad(low: Lowering, node: Node) -> Value:
    view, args = low.view(node.args[0]), arguments(node)
    pads = [int(p) for p in args["pad"]]
    if args["mode"] != "constant" or args["value"] not in (None, 0, 0.0) or min(pads) < 0 or view is None:
        return None
    if not any(pads):
        return view
    pairs = [(pads[i], pads[i + 1]) for i in range(0, len(pads), 2)][::-1]
    pairs = [(0, 0)] * (len(view.dims) - len(pairs)) + pairs
    by_axis = {dim.axis: pair for dim, pair in zip(view.dims, pairs, strict=True)}
    if "".join(dim.axis for dim in view.dims) != "1chw" or any(pairs[0]) or any(view.zeros) or any(view.border):
        return None
    if not view.simple or view.channel or view.channels != view.tensor.shape[0]:
        return None
    shape = node.meta["val"].shape
    dims = tuple(replace(dim, size=int(size)) for dim, size in zip(view.dims, shape, strict=True))
    return replace(view, dims=dims, zeros=by_axis["c"], border=(*by_axis["h"], *by_axis["w"]))


VIEW_HANDLERS: dict[str, Callable[[Lowering, Node], Value]] = {
    "pad": _pad,
    "slice": _slice,
    "select": _select,
    "unbind": _unbind,
    "permute": _permute,
    "transpose": _transpose,
    "dropout": _dropout,
    "expand": _expand,
    "to": _to,
    "_to_copy": _to,
    **dict.fromkeys(("view", "reshape", "flatten", "squeeze", "unsqueeze", "_unsafe_view"), _reshape),
    **dict.fromkeys(("alias", "contiguous", "clone", "detach", "lift_fresh_copy"), _same),
}
