"""The paper in plain torch: schedules, recipes, magprune, TV-PGD and the measures of recovery."""

from .errors import PruningError
from .layers import prunable_parameters
from .masks import apply_masks_, kept, magprune, refuse_non_finite, sparsity
from .recipes import (
    Recipe,
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
from .tvpgd import TVPGD

__all__ = [
    "TVPGD",
    "CycleRecovery",
    "PruningError",
    "Recipe",
    "RecoveryTracker",
    "apply_masks_",
    "cyclical",
    "cyclical_lr",
    "freeze",
    "gradual",
    "gradual_recovery",
    "iterative",
    "kept",
    "lr_constant",
    "lr_cosine",
    "lr_drop",
    "lr_linear",
    "magprune",
    "mask_distance",
    "one_shot",
    "pgd",
    "prunable_parameters",
    "refuse_non_finite",
    "sparsity",
    "with_dense_start",
]
