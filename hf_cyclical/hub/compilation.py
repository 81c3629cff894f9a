"""`hf_cyclical.compile`: a model, a folder or a Hub id on the engine for sparse models."""

from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from hf_cyclical.core import PruningError
from hf_cyclical.models import load

if TYPE_CHECKING:
    from hf_cyclical.engine import CompiledModel

__all__ = ["compile"]


def compile(
    model: nn.Module | str | Path, *, num_threads: int | None = None, revision: str | None = None
) -> "CompiledModel":
    """Make a sparse image classifier fast on this processor.

    ```python
    fast = hf_cyclical.compile("user/name")
    logits = fast(pixel_values)
    ```

    The weights are read again when they were changed in place, as optimizers and `load_state_dict` do. Changes that
    torch does not count, such as those of `parameter.data`, and those of single biases or norms, need `fast.refresh()`.

    Args:
        model: A pruned model of timm or transformers, or a folder or Hub id to load one from.
        num_threads: Threads that compute; those of torch if not given.
        revision: Branch, tag or commit on the Hub.

    Raises:
        PruningError: If llvmlite is missing, if there is no such model, or if it is dense or cannot be compiled.
    """
    from hf_cyclical.engine import compile_model  # llvmlite is an extra

    if not isinstance(model, (nn.Module, str, Path)):
        raise PruningError(f"compile takes a model, a folder or a Hub id, got {type(model).__name__}")
    if not isinstance(model, nn.Module):
        model = load(model, revision)
    return compile_model(model, num_threads=num_threads)
