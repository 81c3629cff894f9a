"""Cyclical pruning for the vision models of the Hugging Face Hub.

Importing this package imports none of its rooms and no library: its names are loaded when they are first asked for.
What it adds to timm (the CIFAR networks) and transformers (the loader of packed weights) is there as soon as they are.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import PruningConfig
    from .core import TVPGD, PruningError, magprune, prunable_parameters
    from .formats import pack_folder
    from .hub import Verification, compile, verify
    from .models import load, unpack_folder
    from .reports import CycleReport, PruningReport, load_report
    from .training import CyclicalPruningTrainer

__version__ = "0.1.0"
__all__ = [
    "TVPGD",
    "CycleReport",
    "CyclicalPruningTrainer",
    "PruningConfig",
    "PruningError",
    "PruningReport",
    "Verification",
    "compile",
    "load",
    "load_report",
    "magprune",
    "pack_folder",
    "prunable_parameters",
    "unpack_folder",
    "verify",
]

_Loader = Callable[[str], Any]


def lazy_names(package: str, **names: str) -> tuple[_Loader, Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose public names are imported when first asked for.

    Args:
        package: Its `__name__`.
        names: For each of its modules the public names in it, with blanks between them.
    """
    homes = {name: module for module, inside in names.items() for name in inside.split()}

    def load_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load_name, lambda: sorted({*vars(sys.modules[package]), *homes}), sorted(homes)


__getattr__, __dir__, _ = lazy_names(
    __name__,
    config="PruningConfig",
    core="PruningError TVPGD magprune prunable_parameters",
    formats="pack_folder",
    hub="Verification compile verify",
    models="load unpack_folder",
    reports="CycleReport PruningReport load_report",
    training="CyclicalPruningTrainer",
)


class _Registration(MetaPathFinder):
    """Imports a module of ours, which registers something, right after the library that it is for.

    Attributes:
        ours: Our module for each module of a library.
    """

    def __init__(self, ours: Mapping[str, str]) -> None:
        self.ours = ours

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the finders after this one find; whoever then executes it registers ours."""
        if fullname not in self.ours:
            return None
        finders = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next((spec for finder in finders if (spec := finder.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader, fullname)
        return spec

    def _extend(self, loader: Any, fullname: str) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == fullname:  # the loader of a zip file is that of all its modules
                import_module(self.ours[fullname])

        loader.exec_module = exec_module


def _register(ours: Mapping[str, str]) -> None:
    sys.meta_path.insert(0, _Registration(ours))
    for theirs, mine in ours.items():
        if sys.modules.get(theirs) is not None:
            import_module(mine)


_register({"timm": f"{__name__}.models.cifar", "transformers.quantizers": f"{__name__}.models.quantizer"})
