"""A model as rows of kernels and torch calls, for images of one size; and running it."""

import math
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor as TorchTensor
from torch import nn
from torch.utils import _pytree as pytree

from .handlers import HANDLERS
from .lowering import Lowering
from .native import Host
from .nodes import Materialized, Slot, TorchCall, follow_changes
from .plan import Choice, Plan
from .program import Allocate, Instance, ordinary_memory
from .workers import Workers

__all__ = ["CLEAR_GAIN", "Graph", "build_graph"]

SHORT = 3e-4  # seconds of an image that are not worth waking up other threads
TRIALS, CLEAR_GAIN = 6, 1.3  # of several threads: how often they are tried, and when that is enough
FIRST_PAUSE, LONGEST_PAUSE = 2, 128  # images that one thread computes, where several took longer


@dataclass
class Graph:
    """The compiled form of a model.

    Attributes:
        steps: Ranges of rows, and torch calls, in order.
        cells: The slot of each cell, and the floats that the rows expect there.
        slots: How many torch tensors there are.
        buffers: Floats of those that the rows write, by slot.
        outputs: What the model gives back: slots, views of slots, or constants.
        out_spec: How these make the model's own output type.
        choices: How each layer is computed.
        torch_nodes: The operations that run in torch.
        direct: Whether only kernels run.
        always_share: Whether several threads share an image even where one would be done sooner.
    """

    program: Any
    steps: list[tuple[int, int] | TorchCall]
    cells: list[tuple[int, int]]
    slots: int
    buffers: dict[int, int]
    outputs: list[Any]
    out_spec: Any
    choices: list[Choice]
    torch_nodes: list[str]
    threads: int
    shape: tuple[int, ...]
    always_share: bool = False
    direct: bool = field(init=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._instances: list[Instance] = []
        self._pool: Workers | None = None
        self.one_takes: float | None = None
        self._alone, self._pause = 0, FIRST_PAUSE
        self._leaf = self.out_spec.is_leaf()
        self._shapes = {slot: (floats,) for slot, floats in self.buffers.items()}
        for i, output in enumerate(self.outputs):
            if isinstance(output, Materialized) and _is_all(output, self.buffers[output.slot]):
                self._shapes[output.slot] = output.size[1:]
                self.outputs[i] = Slot(output.slot, output.size)
        native = [step for step in self.steps if not isinstance(step, TorchCall)]
        self.direct = len(native) == len(self.steps) == 1

    def place(self, allocate: Allocate) -> None:
        """Put the first instance into memory of someone else's choice."""
        self._instances = [Instance(self.program, allocate)]

    def run(self, images: TorchTensor) -> Any:
        """The model's output for a batch of images."""
        if images.shape[1:] != self.shape or images.dtype != torch.float32:
            raise ValueError(f"compiled for images of {self.shape} in float32, got {images.shape} in {images.dtype}")
        images = images.contiguous()
        with self._lock:
            outputs = self._run_rows(images) if self.direct else self._run_steps(images)
        return outputs[0] if self._leaf else pytree.tree_unflatten(outputs, self.out_spec)

    def _instance(self, index: int) -> Instance:
        while len(self._instances) <= index:
            twin = self._instances[0] if self._instances else None
            self._instances.append(Instance(self.program, ordinary_memory, twin))
        return self._instances[index]

    def _run_rows(self, images: TorchTensor) -> list[Any]:
        """Only kernels: images are shared by the threads, or threads share the rows of each image."""
        count = len(images)
        slots: dict[int, TorchTensor] = {0: images}
        for slot, shape in self._shapes.items():
            slots[slot] = torch.empty(count, *shape)
        if count >= self.threads > 1:
            self._divide(slots, count)
        elif self.program.threads == 1 or not self._worth_sharing(slots):
            self._point(self._instance(0), slots, 0)
            self._instance(0).run(*self.steps[0], count)
        else:
            self._point(self._instance(0), slots, 0)
            start = time.perf_counter()
            self._share(self._instance(0), *self.steps[0], count)
            self._look_back((time.perf_counter() - start) / count)
        return [_batched(output, slots, count) for output in self.outputs]

    def _divide(self, slots: dict[int, TorchTensor], count: int) -> None:
        """Each thread runs all rows for some of the images."""
        starts = [count * i // self.threads for i in range(self.threads + 1)]
        done: SimpleQueue[None] = SimpleQueue()
        workers = self._workers()
        try:
            for i in reversed(range(self.threads)):
                instance = self._instance(i)
                self._point(instance, slots, starts[i])
                run = partial(instance.run, *self.steps[0], starts[i + 1] - starts[i])
                if i:
                    workers.start(i - 1, lambda run=run: done.put(run()))
                else:
                    run()
            for _ in range(1, self.threads):
                done.get()
        except BaseException:  # an interrupt, too: the others still write into memory that goes with this call
            self._pool = None
            workers.end()
            raise

    def _share(self, instance: Instance, first: int, last: int, count: int = 1) -> None:
        """All threads run the rows together."""
        instance.ready(self.threads)
        for rank in range(1, self.threads):
            self._workers().start(rank - 1, partial(instance.run, first, last, count, rank, self.threads))
        instance.run(first, last, count, 0, self.threads)

    def _worth_sharing(self, slots: dict[int, TorchTensor]) -> bool:
        """Whether one thread is not done with an image before others have begun, and the processors are free."""
        if self.always_share:
            return True
        if self.one_takes is None:
            instance = self._instance(0)
            for _ in range(2):  # the first one warms up
                self._point(instance, slots, 0)
                start = time.thread_time()
                instance.run(*self.steps[0])
                self.one_takes = time.thread_time() - start
        self._alone -= 1
        return self.one_takes > SHORT and self._alone < 0

    def gain(self) -> float:
        """How many times as fast several threads compute an image as one; 0 if that is not worth it."""
        image, best = torch.zeros(1, *self.shape), 0.0
        for _ in range(TRIALS):
            self._alone = 0
            start = time.perf_counter()
            self.run(image)
            seconds = time.perf_counter() - start
            if self.one_takes is None or self.one_takes <= SHORT:
                break
            best = max(best, self.one_takes / seconds)
            if best > CLEAR_GAIN:
                break
        return best

    def _look_back(self, seconds: float) -> None:
        """Where threads together take longer than one, others use the processors: leave it to one for some time."""
        if self.one_takes is None or seconds < self.one_takes:
            self._alone, self._pause = 0, FIRST_PAUSE
        else:
            self._alone, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)

    def _workers(self) -> Workers:
        if self._pool is None or not self._pool.alive:
            self._pool = Workers(self.threads - 1)
        return self._pool

    def _point(self, instance: Instance, slots: dict[int, TorchTensor], start: int) -> None:
        for cell, (slot, _) in enumerate(self.cells):
            tensor = slots[slot]
            step = tensor.stride(0) * 4
            instance.point(cell, tensor.data_ptr() + start * step, step)

    def _run_steps(self, images: TorchTensor) -> list[Any]:
        """Kernels and torch calls in turn, image by image."""
        each = [self._run_image(image[None]) for image in images]
        return [_stacked([outputs[i] for outputs in each]) for i in range(len(self.outputs))]

    def _run_image(self, image: TorchTensor) -> list[Any]:
        instance = self._instance(0)
        slots: dict[int, Any] = {0: image}
        for slot, shape in self._shapes.items():
            slots[slot] = torch.empty(1, *shape)
        for step in self.steps:
            if isinstance(step, TorchCall):
                args, kwargs = pytree.tree_map_only(
                    (Slot, Materialized), lambda leaf: _resolve(leaf, slots), (step.args, step.kwargs), is_leaf=_is_ours
                )
                slots[step.slot] = step.target(*args, **kwargs)
                continue
            for cell, (slot, floats) in enumerate(self.cells):
                if slot in slots:
                    slots[slot] = slots[slot].float().contiguous()
                    if slots[slot].numel() != floats:
                        raise ValueError(f"torch gave {slots[slot].numel()} values where {floats} are expected")
                    instance.point(cell, slots[slot].data_ptr(), 0)
            self._rows_of(instance, *step)
        return [_resolve(output, slots) for output in self.outputs]

    def _rows_of(self, instance: Instance, first: int, last: int) -> None:
        if self.program.threads == 1:
            instance.run(first, last)
        else:
            self._share(instance, first, last)


def _is_all(value: Materialized, floats: int) -> bool:
    """Whether this is a contiguous tensor that takes all of its memory."""
    contiguous = torch.empty(value.size, device="meta").stride()
    same = all(a == b or n == 1 for a, b, n in zip(value.stride, contiguous, value.size, strict=True))
    return same and value.offset == 0 and math.prod(value.size) == floats


def _is_ours(leaf: Any) -> bool:
    return isinstance(leaf, (Slot, Materialized))


def _resolve(value: Any, slots: dict[int, Any]) -> Any:
    if isinstance(value, Slot):
        return slots[value.index]
    if isinstance(value, Materialized):
        return slots[value.slot].as_strided(value.size, value.stride, value.offset).contiguous()
    return value


def _batched(value: Any, slots: dict[int, TorchTensor], count: int) -> Any:
    """A result of all images: its first dimension, which is 1 for one image, becomes that of images."""
    if isinstance(value, Slot):
        return slots[value.index]
    if not isinstance(value, Materialized):
        return value if not isinstance(value, TorchTensor) else value.expand(count, *value.shape[1:]).clone()
    memory = slots[value.slot]
    stride = (memory.stride(0), *value.stride[1:])
    return memory.as_strided((count, *value.size[1:]), stride, value.offset).contiguous()


def _stacked(values: list[Any]) -> Any:
    return torch.cat(values) if isinstance(values[0], TorchTensor) else values[0]


@torch.no_grad()
def build_graph(
    model: nn.Module, shape: tuple[int, ...], target: Host, threads: int, *, divided: bool = False
) -> Graph:
    """Compile a model for images of one shape (channels, height, width).

    Args:
        model: What to compile.
        shape: Of an image.
        target: The processor.
        threads: How many compute.
        divided: Whether threads get images of their own, so that an image need not be cut into bands.
    """
    example = torch.zeros(1, *shape)
    exported = torch.export.export(model, (example,), strict=False)
    follow_changes(exported.graph)
    plan = Plan(target, 1 if divided else threads)
    low = Lowering(plan, exported)
    results = low.run(HANDLERS)
    if divided and low.torch_calls:
        return build_graph(model, shape, target, threads)  # images go through torch one by one
    outputs = [low.outside(value) for value in results]
    program, ends = plan.program()
    program.cells = len(low.cells)
    calls = [call for _, call in low.torch_calls]
    names = [str(call.target) for call in calls]
    steps = _steps(low, ends)
    spec = exported.call_spec.out_spec
    return Graph(program, steps, low.cells, low.slots, low.buffers, outputs, spec, plan.choices, names, threads, shape)


def _steps(low: Lowering, ends: list[int]) -> list[tuple[int, int] | TorchCall]:
    steps: list[tuple[int, int] | TorchCall] = []
    done = 0
    for after, call in low.torch_calls:
        rows = ends[after - 1] if after else 0
        if rows > done:
            steps.append((done, rows))
            done = rows
        steps.append(call)
    if ends and ends[-1] > done:
        steps.append((done, ends[-1]))
    return steps
