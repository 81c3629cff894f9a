"""Several processes that fail together."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from transformers import Trainer

from hf_cyclical.core import PruningError, any_process

Result = TypeVar("Result")


@contextmanager
def together(trainer: Trainer) -> Iterator[None]:
    """Some lines that all processes run: if they fail on one, none of them goes on to wait for it."""
    error = None
    try:
        yield
    except Exception as raised:
        error = raised
    failed = any_process(error is not None, trainer.args.device)
    if error is not None:
        raise error
    if failed:
        raise PruningError("another process could not push the model: see its error")


def on_main(trainer: Trainer, action: Callable[[], Result]) -> Result | None:
    """What an action gives on the main process, while the others wait; if it fails there, all of them fail."""
    with together(trainer):
        return action() if trainer.is_world_process_zero() else None
