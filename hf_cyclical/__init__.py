"""Cyclical pruning for the vision models of the Hugging Face Hub."""

from . import cifar  # noqa: F401  registers its models in timm
from .compilation import compile
from .config import PruningConfig
from .core import TVPGD, PruningError, magprune, prunable_parameters
from .loading import load
from .packed import pack_folder, unpack_folder  # lets transformers load packed weights, too
from .report import CycleReport, PruningReport, load_report
from .trainer import CyclicalPruningTrainer
from .verify import Verification, verify

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
