"""Imports of packages that only the loading of data needs."""

import importlib
from types import ModuleType

from hf_cyclical.core import PruningError


def optional(module: str, package: str) -> ModuleType:
    """The module, or one line about the package to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PruningError(f'{package} is not installed: pip install "hf_cyclical[run]"') from error
