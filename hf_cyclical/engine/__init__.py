"""Running a sparse model fast on a CPU."""

from typing import TYPE_CHECKING

from torch import nn

from hf_cyclical import lazy_names
from hf_cyclical.core import PruningError

if TYPE_CHECKING:
    from .compiled import CompiledModel

__all__ = ["compile_model"]


def compile_model(model: nn.Module, *, num_threads: int | None = None) -> "CompiledModel":
    """Make a sparse image classifier fast on this processor; see `hf_cyclical.compile`.

    Raises:
        PruningError: If llvmlite is missing, or if the model is dense or cannot be compiled.
    """
    try:
        from .compiled import compile_model as compile_with_llvm
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "llvmlite":
            raise
        raise PruningError('the engine needs llvmlite: pip install "hf_cyclical[fast]"') from error
    return compile_with_llvm(model, num_threads=num_threads)


# What else other rooms use, by the module that is imported when it is first asked for.
__getattr__, __dir__, _more = lazy_names(
    __name__,
    compiled="CompiledModel",
    onnx_export="export_onnx",
    speed="OURS RIVALS Speed Timing measure_speed processor_name",
)
__all__ += _more
