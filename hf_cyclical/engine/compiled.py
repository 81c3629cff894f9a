"""A sparse model that runs on the engine's kernels and is called like the model that it was made from."""

import logging
import threading
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from hf_cyclical.core import PruningError, prunable_parameters

from .graph import CLEAR_GAIN, Graph, build_graph
from .native import host
from .plan import Choice

__all__ = ["CompiledModel", "compile_model"]

logger = logging.getLogger(__name__)

MIN_SPARSITY = 0.1  # of the prunable weights: below it there is nothing to gain
MAX_GRAPHS = 8  # that are kept, of several sizes of images; with several threads, there are two for each size
MAX_SHAPES = 64  # of batches that are known to run on the engine
TRIAL_BATCH = 8  # what stands for all batches of more than one image when torch and the engine are compared
TRIALS = 3
CLEAR = 1.3  # a ratio of times that needs no more trials
_BUILDING = threading.RLock()  # torch.export is not made for several threads
_version = attrgetter("_version")  # how often a tensor was changed in place
FAILURES = (ArithmeticError, AssertionError, AttributeError, KeyError, RuntimeError, TypeError, ValueError)


def compile_model(model: nn.Module, *, num_threads: int | None = None) -> "CompiledModel":
    """Make a sparse image classifier fast on this processor.

    The model is put into eval mode. Its weights are read when images of a new size come, and read again when they were
    changed in place, as optimizers and `load_state_dict` do. Changes that torch does not count, such as those of
    `parameter.data` or a new parameter instead of an old one, and those of single biases or norms, need `refresh()`.

    Args:
        model: A model of timm or transformers, on the CPU, in float32, with zeros in its weights.
        num_threads: Threads that compute; those of torch if not given.

    Raises:
        PruningError: If the model is dense, has weights that are not finite, or is not in float32 on the CPU.
    """
    threads = torch.get_num_threads() if num_threads is None else num_threads
    if not isinstance(threads, int) or threads < 1:
        raise PruningError(f"num_threads must be at least 1, a whole number, got {threads!r}")
    if isinstance(model, CompiledModel):
        model = model.model
    _check_weights(model)
    return CompiledModel(model.eval(), threads)


class CompiledModel(nn.Module):
    """A model on the engine: the same arguments, the same output type, inference only.

    Everything else that is asked of it, such as `config`, is the original model's. A call with more than the images,
    such as labels, runs the original model.

    Args:
        model: The original.
        num_threads: Threads that compute.
    """

    def __init__(self, model: nn.Module, num_threads: int) -> None:
        super().__init__()
        self.model = model
        self.num_threads = num_threads
        self._graphs: dict[tuple[tuple[int, ...], bool], Graph] = {}
        self._slower: dict[tuple[tuple[int, ...], bool, bool], bool] = {}
        self._known: dict[torch.Size, Graph] = {}
        self._watch()
        self.training = False
        self.register_load_state_dict_post_hook(_refresh_after_loading)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the original model, for images (batch, channels, height, width) in float32 on the CPU."""
        alone = len(args) == 1 and not kwargs and args[0] is not None
        images = args[0] if alone else self._only_images(args, kwargs)
        if isinstance(images, Tensor) and images.dtype is torch.float32 and images.is_cpu:
            graph = self._known.get(images.shape)  # all that is below takes as long as a small network's kernels
            if graph is not None and sum(map(_version, self._watched)) == self._seen:
                return graph.run(images)
        with torch.no_grad():
            return self._run(images, args, kwargs)

    def _run(self, images: Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._refuse_training()
        if images is None:
            return self.model(*args, **kwargs)
        _check_images(images)
        if not len(images):
            return self.model(images)
        if sum(map(_version, self._watched)) != self._seen:
            logger.info("the weights have changed: compiling again")
            self.refresh()
        graph = self._graph(tuple(images.shape))
        if self._torch_is_faster(graph, len(images)):
            return self.model(images)
        if graph.direct:
            if len(self._known) >= MAX_SHAPES:
                self._known.clear()
            self._known[images.shape] = graph
        return graph.run(images)

    def choices(self, *shape: int) -> list[Choice]:
        """How each layer is computed for images of a shape (channels, height, width), and why."""
        return self._graph((1, *shape)).choices

    def torch_operations(self, *shape: int) -> list[str]:
        """The operations that run in torch, because the engine does not have them."""
        return self._graph((1, *shape)).torch_nodes

    def in_torch(self, *shape: int) -> bool:
        """Whether a batch of a shape (images, channels, height, width) runs in torch, because that is faster."""
        return self._torch_is_faster(self._graph(shape), shape[0])

    def refresh(self) -> None:
        """Read the weights again after they were changed."""
        _check_weights(self.model)
        self._watch()
        for cache in (self._graphs, self._slower, self._known):
            cache.clear()

    def train(self, mode: bool = True) -> "CompiledModel":
        if mode:
            raise PruningError("a compiled model runs inference only: train the original model and compile it again")
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def __getstate__(self) -> dict[str, Any]:
        """Without compiled code, which is made again where it is needed."""
        return {**self.__dict__, "_graphs": {}, "_slower": {}, "_known": {}, "_watched": [], "_seen": -1}

    def _apply(self, fn: Any, recurse: bool = True) -> "CompiledModel":
        moved = fn(torch.zeros(1))
        if moved.device.type != "cpu" or moved.dtype != torch.float32:
            raise PruningError(
                f"a compiled model stays on the CPU in float32, got {moved.dtype} on {moved.device.type}: "
                "move the original model"
            )
        return self

    def _only_images(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        given = [value for value in (*args, *kwargs.values()) if value is not None]
        name = next((name for name, value in kwargs.items() if value is not None), "pixel_values")
        if len(given) == 1 and isinstance(given[0], Tensor) and name in ("pixel_values", "x", "input"):
            return given[0]
        if not given:
            raise PruningError("no images: call the model with a tensor (batch, channels, height, width)")
        return None

    def _watch(self) -> None:
        """Remember how often the weights were changed so far.

        Watching every parameter and buffer would take as long as some layers of a small network, so of those that are
        not pruned the first and the last ones stand for all: training changes all of them.
        """
        weights = list(prunable_parameters(self.model).values())
        ids = {id(weight) for weight in weights}
        others = [p for p in self.model.parameters() if id(p) not in ids]
        # A BatchNorm's means change without being counted, but not without its last buffer, the number of batches.
        watched = [*weights, *others[:1], *others[-1:], *list(self.model.buffers())[-1:]]
        self._watched = [tensor for tensor in watched if not tensor.is_inference()]  # whose changes nobody counts
        self._seen = sum(map(_version, self._watched))

    def _graph(self, shape: tuple[int, ...]) -> Graph:
        """What computes a batch of a shape (images, channels, height, width)."""
        size, divided = shape[1:], shape[0] >= self.num_threads > 1
        graph = self._graphs.get((size, divided))
        if graph is None:
            with _BUILDING:
                graph = self._graphs.get((size, divided)) or self._build(size, divided)
        return graph

    def _refuse_training(self) -> None:
        if any(module.training for module in self.model.modules()):
            raise PruningError(
                "the original model is in training mode: call its eval(), and refresh() if its weights changed"
            )

    def _build(self, shape: tuple[int, ...], divided: bool) -> Graph:
        self._refuse_training()
        if len(self._graphs) >= MAX_GRAPHS:
            self._graphs.pop(next(iter(self._graphs)))
            self._known.clear()
        start = time.perf_counter()
        try:
            graph = build_graph(self.model, shape, host(), self.num_threads, divided=divided)
        except PruningError:
            raise
        except FAILURES as error:
            size = " x ".join(map(str, shape))
            raise PruningError(f"the model cannot be compiled for images of {size}: {_first_line(error)}") from error
        if self.num_threads > 1 and not divided and graph.direct and graph.gain() < CLEAR_GAIN:
            graph = self._one_or_several(graph)
        self._graphs[shape, divided] = graph
        logger.info("compiled for images of %s in %.1f s", shape, time.perf_counter() - start)
        return graph

    def _one_or_several(self, shared: Graph) -> Graph:
        """Where several threads gain little, the program that one thread runs may be the better choice."""
        divided = self._graph((self.num_threads, *shared.shape))
        image, gains = torch.zeros(1, *shared.shape), shared.gain()
        alone = min(_seconds(time.thread_time, divided.run, image) for _ in range(TRIALS + 1))
        return shared if gains and shared.one_takes / gains < alone else divided

    def _trial_size(self, count: int) -> int:
        """How many images stand for a batch of `count`: as many as are computed in the same way."""
        if count == 1:
            return 1
        shared = count < self.num_threads
        return min(TRIAL_BATCH, self.num_threads - 1) if shared else max(TRIAL_BATCH, self.num_threads)

    def _torch_is_faster(self, graph: Graph, count: int) -> bool:
        """Measured once, because at low sparsities a library for dense models may be the better choice."""
        divided = count >= self.num_threads > 1
        key = (graph.shape, count > 1, divided)
        slower = self._slower.get(key)
        if slower is None:
            images = torch.zeros(self._trial_size(count), *graph.shape)
            # With one thread, time in which other processes had the processor does not count.
            alone = self.num_threads == torch.get_num_threads() == 1
            clock = time.thread_time if alone else time.perf_counter
            ours, dense = float("inf"), float("inf")
            for number in range(TRIALS + 1):
                ours = min(ours, _seconds(clock, graph.run, images))
                dense = min(dense, _seconds(clock, self.model, images))
                if number and max(ours, dense) > CLEAR * min(ours, dense):
                    break
            slower = self._slower[key] = ours > dense
        return slower


def _seconds(clock: Callable[[], float], run: Callable[[Tensor], Any], images: Tensor) -> float:
    start = clock()
    run(images)
    return clock() - start


def _refresh_after_loading(module: CompiledModel, _: Any) -> None:
    module.refresh()


def _check_images(images: Any) -> None:
    if not isinstance(images, Tensor) or images.layout != torch.strided:
        kind = images.layout if isinstance(images, Tensor) else type(images).__name__
        raise PruningError(f"images must be a dense tensor (batch, channels, height, width), got {kind}")
    if images.dim() != 4:
        raise PruningError(
            f"images must have the shape (batch, channels, height, width), got {tuple(images.shape)}: "
            "add the dimensions that are missing"
        )
    if images.dtype != torch.float32 or images.device.type != "cpu":
        raise PruningError(
            f"images must be float32 on the CPU, got {images.dtype} on {images.device.type}: use images.float().cpu()"
        )


def _check_weights(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not tensor.is_floating_point():
            continue
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise PruningError(
                f"{name} is {tensor.dtype} on {tensor.device.type}: the engine needs float32 on the CPU, "
                "use model.float().cpu()"
            )
        if not torch.isfinite(tensor).all():
            raise PruningError(f"{name} has values that are not finite: a model with such weights cannot be compiled")
    weights = prunable_parameters(model).values()
    zeros, total = sum(int((w == 0).sum()) for w in weights), sum(w.numel() for w in weights)
    if zeros < MIN_SPARSITY * total:
        raise PruningError(
            f"the model is dense, only {zeros / total:.1%} of its prunable weights are zero: prune it first"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
