"""Imports of packages that an extra of this package installs."""

import importlib
from types import ModuleType

from hf_cyclical.core import PruningError


def optional(module: str, package: str) -> ModuleType:
    """The module, or one line about the package to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PruningError(f'{package} is not installed: pip install "hf_cyclical[run]"') from error
