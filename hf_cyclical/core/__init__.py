"""The paper in plain torch: schedules, recipes, magprune, TV-PGD and the measures of recovery."""

from . import recipes, schedules
from .alternation import acdc
from .choices import Choice, Largest, Steered, View, layer_targets
from .collectives import any_process, broadcast_buffers, leave_group, several_processes
from .errors import PruningError, first_line
from .layers import prunable_parameters, refuse_transposed
from .masks import apply_masks_, kept, magprune, refuse_non_finite, sparsity
from .moments import KEEP, MASK, Moments, has_momentum, momentum_name, refuse_without_momentum, refuse_without_restart
from .patterns import UNSTRUCTURED, Blocks, NofM, Pattern, pattern_of, refuse_unfit
from .recipes import (
    LrFactor,
    Recipe,
    Shape,
    cyclical,
    cyclical_lr,
    freeze,
    gradual,
    gradual_recovery,
    iterative,
    lr_constant,
    lr_cosine,
    lr_drop,
    lr_linear,
    one_shot,
    pgd,
    with_dense_start,
)
from .recovery import CycleRecovery, RecoveryTracker, mask_distance
from .shards import Shards, local, part, restored, whole
from .shares import Layers, Share, erk, lamp, ranked, uniform
from .tvpgd import TVPGD

__all__ = [
    "KEEP",
    "MASK",
    "TVPGD",
    "UNSTRUCTURED",
    "Blocks",
    "Choice",
    "CycleRecovery",
    "Largest",
    "Layers",
    "LrFactor",
    "Moments",
    "NofM",
    "Pattern",
    "PruningError",
    "Recipe",
    "RecoveryTracker",
    "Shape",
    "Shards",
    "Share",
    "Steered",
    "View",
    "acdc",
    "any_process",
    "apply_masks_",
    "broadcast_buffers",
    "cyclical",
    "cyclical_lr",
    "erk",
    "first_line",
    "freeze",
    "gradual",
    "gradual_recovery",
    "has_momentum",
    "iterative",
    "kept",
    "lamp",
    "layer_targets",
    "leave_group",
    "local",
    "lr_constant",
    "lr_cosine",
    "lr_drop",
    "lr_linear",
    "magprune",
    "mask_distance",
    "momentum_name",
    "one_shot",
    "part",
    "pattern_of",
    "pgd",
    "prunable_parameters",
    "ranked",
    "recipes",
    "refuse_non_finite",
    "refuse_transposed",
    "refuse_unfit",
    "refuse_without_momentum",
    "refuse_without_restart",
    "restored",
    "schedules",
    "several_processes",
    "sparsity",
    "uniform",
    "whole",
    "with_dense_start",
]
