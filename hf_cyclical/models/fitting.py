"""Whether stored tensors are those of the model that a config describes: seen before any of them takes memory."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import timm
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
    TimmWrapperConfig,
)

from hf_cyclical.core import PruningError, first_line
from hf_cyclical.formats import CONFIG, QUANTIZATION_KEY, Kind, refuse_large, task_of, wrapper_arguments

from .build_limits import sketch
from .finding import auto_class
from .silence import silence
from .untrusted_config import refuse_hostile

UNBUILDABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)

Kinds = Mapping[str, Kind]
Misfits = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Fit:
    """How the stored tensors compare with those of the model.

    Attributes:
        missing: Names of tensors of the model that are not stored.
        unknown: Names of stored tensors that the model does not have.
        misshapen: Names, and what is wrong with their shapes.
        not_floats: Names of stored tensors, and their dtypes, which are not of the kind that the model has.
        surplus: How many more values are stored than the model has, though all of these fit: of two tensors for one
            weight only one is loaded.
    """

    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    misshapen: Misfits
    not_floats: Misfits
    surplus: int = 0

    def lines(self) -> Iterator[str]:
        """A line for each tensor that does not fit."""
        model = f"the model of {CONFIG}"
        yield from (f"tensor {name!r:.100} of {model} is not in the weights" for name in self.missing)
        yield from (f"tensor {name!r:.100} is in the weights, but not in {model}" for name in self.unknown)
        yield from (f"tensor {name!r:.100} {what}" for name, what in self.misshapen)
        yield from (f"tensor {name!r:.100} is of {what}, which {model} does not hold" for name, what in self.not_floats)
        if self.surplus:
            yield f"the weights hold {self._count()} than {model}, which are not loaded as they are"

    def refuse(self, folder: Path) -> None:
        """Raise a PruningError if anything does not fit."""
        names = {*self.missing, *self.unknown, *(name for name, _ in (*self.misshapen, *self.not_floats))}
        if names:
            raise PruningError(
                f"the weights in {str(folder)!r} do not fit its config: {len(names)} tensors are missing, unknown or "
                f"of another shape or dtype, the first is {min(names)!r:.80}: save the model again"
            )
        self.refuse_surplus(folder)

    def refuse_surplus(self, where: str | Path) -> None:
        """Raise a PruningError if there are two tensors for one weight."""
        if self.surplus:
            raise PruningError(
                f"the weights in {str(where)!r} do not fit its config: they hold {self._count()} than the model: save "
                "the model again"
            )

    def _count(self) -> str:
        return f"{abs(self.surplus):,} values {'more' if self.surplus > 0 else 'less'}"


@dataclass(frozen=True)
class Plan:
    """A model that can be made: how the stored tensors fit it, and a function that makes it of them."""

    fit: Fit
    make: Callable[[dict[str, Tensor]], nn.Module]


def plan_model(folder: Path, config: dict[str, Any], kinds: Kinds, max_bytes: int, *, exact: bool = True) -> Plan:
    """The model of a config, which may be hostile, without memory for its weights.

    Args:
        folder: Where the config is, and what errors call the model.
        config: Its content.
        kinds: Of the tensors that are stored for it.
        max_bytes: The most that the model may take.
        exact: Whether to refuse a model that has more weights than there are, before anything else of it is looked at.

    Raises:
        PruningError: If the config cannot be used, or if it asks for far more than what is stored.
    """
    refuse_hostile(folder, config)
    plan = _plan_transformers if "model_type" in config else _plan_timm
    try:
        with silence():
            return plan(
                folder, config, kinds, partial(sketch_within, folder, kinds=kinds, max_bytes=max_bytes, exact=exact)
            )
    except PruningError:
        raise
    except UNBUILDABLE as error:
        raise PruningError(f"the model in {str(folder)!r} cannot be made: {first_line(error)}") from error


def compare_loaded(kind: type[PreTrainedModel], config: PreTrainedConfig, kinds: Kinds, made: nn.Module) -> Fit:
    """What transformers would say of stored tensors: it knows their names of older versions, and how to merge them.

    It loads tensors without values into a model without memory.
    """
    tensors = {name: torch.empty(shape, dtype=dtype, device="meta") for name, (dtype, shape) in kinds.items()}
    with silence():
        _, loaded = kind.from_pretrained(
            None,
            config=config,
            state_dict=tensors,
            device_map={"": "meta"},
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are in the answer
        )
    misshapen = tuple((name, _shapes(a, b)) for name, a, b in sorted(loaded["mismatched_keys"]))
    missing, unknown = (tuple(sorted(loaded[key])) for key in ("missing_keys", "unexpected_keys"))
    surplus = 0 if missing or misshapen else _surplus(kinds, unknown, made)
    return Fit(missing, unknown, misshapen, _not_floats(kinds, made), surplus)


def _surplus(kinds: Kinds, unknown: Collection[str], made: nn.Module) -> int:
    """Only of floats: transformers leaves out tables of indices that older versions stored."""
    stored = sum(
        prod(kind.shape) for name, kind in kinds.items() if kind.dtype.is_floating_point and name not in unknown
    )
    own = {id(tensor): tensor for tensor in made.state_dict(keep_vars=True).values() if tensor.is_floating_point()}
    return stored - sum(tensor.numel() for tensor in own.values())


def _plan_timm(folder: Path, config: dict[str, Any], kinds: Kinds, sketch_of: Callable) -> Plan:
    classes = {"num_classes": config["num_classes"]} if config.get("num_classes") is not None else {}
    given = config.get("model_args") or {}
    arguments = given | classes
    make = partial(timm.create_model, config["architecture"], pretrained=False, **arguments)
    made = sketch_of(make)
    expected = {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()}
    if arguments != classes | given:  # timm takes the second one, transformers' wrapper the first
        raise PruningError(
            f"{CONFIG} in {str(folder)!r} has num_classes {classes['num_classes']}, and in model_args "
            f"{str(given['num_classes'])[:80]!r}: save the model again"
        )
    fit = Fit(
        tuple(sorted(set(expected) - set(kinds))),
        tuple(sorted(set(kinds) - set(expected))),
        tuple(
            (name, _shapes(kind.shape, expected[name]))
            for name, kind in sorted(kinds.items())
            if name in expected and kind.shape != expected[name]
        ),
        _not_floats(kinds, made),
    )

    def load(tensors: dict[str, Tensor]) -> nn.Module:
        model = make()
        model.load_state_dict(tensors)
        dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
        return model.to(dtypes.pop()) if len(dtypes) == 1 else model

    return Plan(fit, load)


def _plan_transformers(folder: Path, config: dict[str, Any], kinds: Kinds, sketch_of: Callable) -> Plan:
    settings = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if hasattr(settings, QUANTIZATION_KEY):
        delattr(settings, QUANTIZATION_KEY)
    if isinstance(settings, TimmWrapperConfig):
        settings.model_args = wrapper_arguments(settings.model_args)
    task = task_of(config)
    if type(settings) not in getattr(transformers, task.mapping):
        raise PruningError(f"the model in {str(folder)!r} is a {settings.model_type}, no {task.noun}: use one")
    made = sketch_of(partial(auto_class(task).from_config, settings, trust_remote_code=False))
    kind = type(made)  # its class matters, too: that of the config may be one of several

    def load(tensors: dict[str, Tensor]) -> nn.Module:
        dtype = settings.dtype or torch.float32
        return kind.from_pretrained(None, config=settings, state_dict=tensors, dtype=dtype)

    return Plan(compare_loaded(kind, settings, kinds, made), load)


def sketch_within(
    folder: Path, make: Callable[[], nn.Module], *, kinds: Kinds, max_bytes: int, exact: bool
) -> nn.Module:
    """The model without its weights, if these can fit: names may be others in the file, but not how many there are."""
    shapes = {name: kind.shape for name, kind in kinds.items()}
    stored = sum(map(prod, shapes.values()))
    refusal = (
        f"the weights in {str(folder)!r} do not fit its config, which asks for more than the {stored:,} values in "
        f"{len(shapes):,} tensors that there are: save the model again"
    )
    made = sketch(make, shapes, refusal)
    if exact and sum(parameter.numel() for parameter in made.parameters()) > stored:
        raise PruningError(refusal)
    refuse_large(str(folder), sum(tensor.nbytes for tensor in (*made.parameters(), *made.buffers())), max_bytes)
    return made


def _not_floats(kinds: Kinds, made: nn.Module) -> Misfits:
    """Stored tensors whose numbers are of another kind than the model's; of names only the end is always the same.

    Floats of one byte are of no model's kind: torch stores them, and does not compute with them.
    """
    floats: dict[bool, set[str]] = {True: set(), False: set()}
    for name, tensor in made.state_dict().items():
        floats[tensor.is_floating_point()].add(_leaf(name))
    return tuple(
        (name, str(kind.dtype).removeprefix("torch."))
        for name, kind in sorted(kinds.items())
        if kind.dtype.is_complex
        or (kind.dtype.is_floating_point and kind.dtype.itemsize == 1)
        or _leaf(name) not in floats[kind.dtype.is_floating_point]
    )


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _shapes(stored: Any, expected: Any) -> str:
    return f"has shape {list(stored)} in the weights, and {list(expected)} in the model of {CONFIG}"
