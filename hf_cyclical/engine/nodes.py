"""Nodes of a graph of torch.export: their names and arguments, and what becomes of those that run in torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

__all__ = ["Materialized", "Slot", "TorchCall", "arguments", "follow_changes", "name_of"]


@dataclass(frozen=True)
class Slot:
    """A torch tensor that exists when the program runs."""

    index: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Materialized:
    """Planes as a torch tensor: a copy of all channels and pixels, seen through strides."""

    slot: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class TorchCall:
    """A node that runs in torch."""

    target: Callable[..., Any]
    args: Any
    kwargs: Any
    slot: int


def follow_changes(graph: Graph) -> None:
    """Let what comes after an operation in place use its result, so that nothing depends on memory that changes."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            changed = node.args[0]
            changed.replace_all_uses_with(node, delete_user_cb=lambda user, at=order[node]: order[user] > at)


def name_of(node: Node) -> str:
    """The operation without its overload: relu for aten.relu_.default."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return ""
    return node.target._schema.name.removeprefix("aten::").rstrip("_")


def arguments(node: Node) -> dict[str, Any]:
    """The arguments of a call by their names, with defaults."""
    schema = node.target._schema.arguments
    given = dict(zip((a.name for a in schema), node.args, strict=False)) | dict(node.kwargs)
    return {a.name: given.get(a.name, a.default_value) for a in schema}
