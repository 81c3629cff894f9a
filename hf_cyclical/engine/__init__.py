"""Running a sparse model fast on a CPU."""

from ..core import PruningError

try:
    import llvmlite  # noqa: F401
except ImportError as error:
    raise PruningError('the engine needs llvmlite: pip install "hf_cyclical[fast]"') from error

from .compiled import CompiledModel, compile_model
from .plan import Choice

__all__ = ["Choice", "CompiledModel", "compile_model"]
