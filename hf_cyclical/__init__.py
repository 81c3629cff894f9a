"""Cyclical pruning for the vision models of the Hugging Face Hub."""

from . import cifar  # noqa: F401  registers its models in timm
from .config import PruningConfig
from .core import TVPGD, PruningError, magprune, prunable_parameters
from .report import CycleReport, PruningReport, load_report
from .trainer import CyclicalPruningTrainer

__version__ = "0.1.0"
__all__ = [
    "TVPGD",
    "CycleReport",
    "CyclicalPruningTrainer",
    "PruningConfig",
    "PruningError",
    "PruningReport",
    "load_report",
    "magprune",
    "prunable_parameters",
]
