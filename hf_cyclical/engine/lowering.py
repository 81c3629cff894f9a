"""From a graph of torch.export to a plan: a node becomes operators on planes, a view, a constant or a torch call."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor as TorchTensor
from torch.export import ExportedProgram
from torch.fx import Node

from .copies import External, Phases, copy_in, copy_into, copy_out, split_phases
from .nodes import Materialized, Slot, TorchCall, name_of
from .plan import Plan
from .planes import Tensor
from .views import Dim, View, image, reshape

__all__ = ["Lowering", "Value"]


VIEWS = ("alias", "avg_pool2d", "pad", "slice", "permute", "transpose", "dropout", "contiguous", "clone", "detach")


Value = View | Slot | TorchTensor | list[Any] | tuple[Any, ...] | int | float | bool | None


@dataclass
class Lowering:
    """The state of the pass over the graph.

    Attributes:
        plan: Where operators go.
        values: What each node is.
        torch_calls: After how many operators which torch calls come.
        slots: How many torch tensors exist at run time.
        cells: The slot that each cell of the program points to, and how many floats there are.
        done: Nodes that are part of an operator already.
        phases: Images that are taken apart by a stride, by image and stride.
        buffers: How many floats the torch tensors have that the program writes, by slot.
        materialized: The slot of planes that were copied out, by tensor.
        entered: The planes of torch tensors, by cell.
        names: The parameters' names in the model.
    """

    plan: Plan
    exported: ExportedProgram
    values: dict[Node, Value] = field(default_factory=dict)
    torch_calls: list[tuple[int, TorchCall]] = field(default_factory=list)
    slots: int = 0
    cells: list[tuple[int, int]] = field(default_factory=list)
    buffers: dict[int, int] = field(default_factory=dict)
    done: set[Node] = field(default_factory=set)
    phases: dict[tuple[Any, tuple[int, int]], Phases] = field(default_factory=dict)
    materialized: dict[int, int] = field(default_factory=dict)
    entered: dict[int, Tensor] = field(default_factory=dict)
    names: dict[Node, str] = field(default_factory=dict)

    def run(self, handlers: dict[str, Callable[["Lowering", Node], Value]]) -> list[Value]:
        """Lower all nodes, and return what the model gives back."""
        self._handlers = handlers
        for node in self.exported.graph.nodes:
            if node in self.done or node in self.values:
                continue
            if node.op == "placeholder":
                self.values[node] = self._placeholder(node)
            elif node.op == "output":
                return [self.get(value) for value in node.args[0]]
            else:
                self.values[node] = self._call(node, handlers)
        raise ValueError("the exported graph has no output")

    def ahead(self, node: Node) -> Value:
        """The value of a node that may come later, if it is only a view of what is there already."""
        known, free = node in self.values, name_of(node) in VIEWS
        if not known and free and all(self.ahead(arg) is not None for arg in node.all_input_nodes):
            result = self._handlers[name_of(node)](self, node)
            if result is not None:
                self.values[node] = result
        return self.values.get(node)

    def get(self, arg: Any) -> Value:
        return self.values[arg] if isinstance(arg, Node) else arg

    def constant(self, arg: Any) -> np.ndarray | None:
        """The value of an argument that is a weight, as float32; None if it is anything else."""
        value = self.get(arg)
        return value.detach().float().numpy() if isinstance(value, TorchTensor) else None

    def layer_name(self, weight: Node) -> str:
        """The layer that a weight belongs to."""
        return self.names.get(weight, weight.name).removesuffix(".weight")

    def new_slot(self, shape: tuple[int, ...]) -> Slot:
        self.slots += 1
        return Slot(self.slots - 1, shape)

    def new_cell(self, slot: Slot) -> int:
        self.cells.append((slot.index, math.prod(slot.shape)))
        return len(self.cells) - 1

    def view(self, arg: Any, *, tokens: bool = False) -> View | None:
        """An argument in planes; a torch tensor of a shape that can be is copied there.

        Args:
            arg: A node.
            tokens: Whether its last dimension is that of channels, whatever the others are.
        """
        value = self.get(arg)
        if isinstance(value, Slot):
            value = self._enter_tokens(value) if tokens else self._enter(value)
        return value if isinstance(value, View) else None

    def _placeholder(self, node: Node) -> Value:
        signature = self.exported.graph_signature
        for mapping, tensors in (
            (signature.inputs_to_parameters, self.exported.state_dict),
            (signature.inputs_to_buffers, self.exported.state_dict | self.exported.constants),
            (signature.inputs_to_lifted_tensor_constants, self.exported.constants),
        ):
            if node.name in mapping:
                self.names[node] = mapping[node.name]
                return tensors[mapping[node.name]].detach()
        value = node.meta["val"]
        return self.new_slot(tuple(value.shape)) if isinstance(value, TorchTensor) else value

    def _call(self, node: Node, handlers: dict[str, Callable[["Lowering", Node], Value]]) -> Value:
        if node.target is operator.getitem:
            return self.get(node.args[0])[node.args[1]]
        if node.meta.get("val") is None:
            return None  # a check of what is known already
        inputs = [self.values[arg] for arg in node.all_input_nodes]
        if not any(_varies(value) for value in inputs):
            return self._fold(node)
        handler = handlers.get(name_of(node))
        result = handler(self, node) if handler else None
        return self._in_torch(node) if result is None else result

    def _fold(self, node: Node) -> Value:
        with torch.no_grad():
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: self.values[arg])
            return node.target(*args, **kwargs)

    def _in_torch(self, node: Node) -> Value:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: self.outside(self.values[arg]))
        slot = self.new_slot(())
        # Strides are not those of the original model, and `view` minds them.
        target = torch.ops.aten.reshape.default if name_of(node) == "view" else node.target
        self.torch_calls.append((self.plan.steps, TorchCall(target, args, kwargs, slot.index)))
        value = node.meta["val"]
        if isinstance(value, TorchTensor):
            return Slot(slot.index, tuple(value.shape))
        # Several results: each gets a slot of its own.
        parts = []
        for i, part in enumerate(value):
            taken = self.new_slot(tuple(part.shape))
            call = TorchCall(operator.getitem, (Slot(slot.index, ()), i), {}, taken.index)
            self.torch_calls.append((self.plan.steps, call))
            parts.append(taken)
        return parts

    def outside(self, value: Any) -> Any:
        """A value as an argument of a torch call: planes are copied out."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.outside(item) for item in value)
        if not isinstance(value, View):
            return value
        return self.materialize(value)

    def materialize(self, view: View) -> Any:
        """The planes of a view as a torch tensor: a copy of all of them, seen through strides."""
        if isinstance(view.tensor, External) and view == image(view.tensor):
            return Slot(self.cells[view.tensor.cell][0], view.shape)
        tensor, view = self.settled(view)
        channels, height, width = tensor.shape
        if id(tensor) not in self.materialized:
            slot = self.new_slot((channels, height, width))
            self.buffers[slot.index] = channels * height * width
            strides = (4 * height * width, 4 * width, 4)
            copy_out(self.plan, tensor, External(self.new_cell(slot), slot.shape, strides))
            self.materialized[id(tensor)] = slot.index
        steps = {"c": height * width, "h": width, "w": 1, "p": 1, "1": 1}
        strides = tuple(dim.stride * steps[dim.axis] for dim in view.dims)
        offset = view.channel * height * width
        return Materialized(self.materialized[id(tensor)], view.shape, strides, offset)

    def settled(self, view: View) -> tuple[Tensor, View]:
        """A view of planes that hold nothing else than what it shows, except for other channels."""
        tensor = view.tensor
        if isinstance(tensor, External):
            if tensor.cell not in self.entered:
                self.entered[tensor.cell] = copy_in(self.plan, tensor)
            tensor = self.entered[tensor.cell]
        if view.zeros == (0, 0) and view.border == (0, 0, 0, 0) and view.step == (1, 1):
            return tensor, replace(view, tensor=tensor)
        (height, width), channels = view.spatial, tensor.shape[0]
        rows = self.plan.band_rows(height, width)
        target = self.plan.tensor(channels + sum(view.zeros), height, width, exclusive=True, band_rows=rows)
        if view.step != (1, 1):
            phases = self.split(tensor, view.step)
            phases.needed.add((0, 0))
            tensor = phases.tensor
        top, _, left, _ = view.border
        copy_into(self.plan, tensor, target, channel=view.zeros[0], row=top, column=left, channels=channels)
        return target, replace(view, tensor=target, zeros=(0, 0), border=(0, 0, 0, 0), step=(1, 1))

    def planes(self, view: View | None) -> Tensor | None:
        """The tensor of a view that shows all of it, in the tensor's order of channels."""
        if view is None:
            return None
        tensor, view = self.settled(view)
        if view.complete:
            return tensor
        if view.simple:
            part = self.plan.tensor(view.channels, *tensor.shape[1:], band_rows=tensor.layout.band_rows)
            copy_into(self.plan, tensor, part, of=view.channel, channels=view.channels)
            return part
        return None

    def split(self, source: Tensor | External, stride: tuple[int, int]) -> Phases:
        """The image taken apart by a stride, once for all that need it."""
        key = (source.cell if isinstance(source, External) else source, stride)
        if key not in self.phases:
            self.phases[key] = split_phases(self.plan, source, stride)
        return self.phases[key]

    def _enter(self, slot: Slot) -> View | None:
        """Planes of a torch tensor: an image, or tokens whose last dimension is that of channels."""
        shape = slot.shape
        if not shape or shape[0] != 1 or 0 in shape:
            return None
        if len(shape) == 4:
            channels, height, width = shape[1:]
            strides = (4 * height * width, 4 * width, 4)
            return image(External(self._cell_of(slot), (channels, height, width), strides))
        return self._enter_tokens(slot) if len(shape) in (2, 3) else None

    def _enter_tokens(self, slot: Slot) -> View | None:
        """Planes of a torch tensor whose last dimension is that of channels."""
        *pixels, channels = slot.shape
        count = math.prod(pixels)
        if len(slot.shape) < 2 or not count * channels:
            return None
        external = External(self._cell_of(slot), (channels, 1, count), (4, 4 * channels * count, 4 * channels))
        return reshape(View(external, (Dim("p", count), Dim("c", channels))), slot.shape)

    def _cell_of(self, slot: Slot) -> int:
        known = [index for index, _ in self.cells]
        return known.index(slot.index) if slot.index in known else self.new_cell(slot)


def _varies(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_varies(item) for item in value)
    return isinstance(value, (View, Slot))
