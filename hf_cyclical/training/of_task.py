"""What a task gives the Trainer."""

from collections.abc import Callable
from importlib import import_module

from hf_cyclical.formats import Task

_PACKAGE = __package__.partition(".")[0]


def task_arguments(task: Task) -> dict[str, Callable]:
    """Arguments of the Trainer for a task: collator and metrics, as far as it has any.

    >>> sorted(task_arguments(CLASSIFICATION))
    ['compute_metrics', 'data_collator', 'preprocess_logits_for_metrics']
    """
    named = {
        "data_collator": task.data_collator,
        "compute_metrics": task.compute_metrics,
        "preprocess_logits_for_metrics": task.preprocess_logits,
    }
    return {argument: _found(name) for argument, name in named.items() if name is not None}


def _found(name: str) -> Callable:
    room, _, function = name.partition(".")
    return getattr(import_module(f"{_PACKAGE}.{room}"), function)
