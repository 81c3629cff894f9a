"""The paper in plain torch: schedules, recipes, magprune, TV-PGD and the measures of recovery."""

from . import automatic, dense_start, levers, recipes, schedules, settings
from .allr import allr
from .alternation import acdc
from .choices import Choice, Largest, Score, Steered, View, layer_targets, magnitude
from .collectives import any_process, broadcast_buffers, leave_group, several_processes
from .dpf import dpf
from .errors import DivergedError, PruningError, first_line, printable
from .granet import granet
from .layers import prunable_parameters, refuse_transposed
from .learning_rates import (
    LrFactor,
    LrShape,
    lr_constant,
    lr_cosine,
    lr_drop,
    lr_factor,
    lr_linear,
    lr_warmup,
)
from .masks import apply_masks_, kept, magprune, refuse_non_finite, sparsity
from .moments import (
    KEEP,
    MASK,
    MASKING,
    RANKING,
    Moments,
    Need,
    has_momentum,
    momentum_name,
    refuse_without_momentum,
    refuse_without_restart,
)
from .patterns import UNSTRUCTURED, Blocks, NofM, Pattern, pattern_of, refuse_unfit
from .recipes import (
    Recipe,
    Shape,
    cyclical,
    cyclical_lr,
    freeze,
    gradual,
    gradual_recovery,
    iterative,
    one_shot,
    pgd,
    with_dense_start,
)
from .recovery import CycleRecovery, RecoveryTracker, mask_distance
from .regrowth import Regrowth
from .rigl import rigl
from .rows import row_counts
from .scores import random_scores
from .shards import Shards, local, part, restored, whole
from .shares import Layers, Share, erk, lamp, ranked, uniform
from .snfs import snfs
from .topk import finite
from .tvpgd import TVPGD

# By themselves, as only methods.py spells their names.
_METHODS_AND_SHARES = (
    *(cyclical, gradual, gradual_recovery, cyclical_lr, iterative, one_shot, pgd, freeze),
    *(acdc, rigl, snfs, dpf, granet),
    *(uniform, erk, lamp),
)
__all__ = [
    "KEEP",
    "MASK",
    "MASKING",
    "RANKING",
    "TVPGD",
    "UNSTRUCTURED",
    "Blocks",
    "Choice",
    "CycleRecovery",
    "DivergedError",
    "Largest",
    "Layers",
    "LrFactor",
    "LrShape",
    "Moments",
    "Need",
    "NofM",
    "Pattern",
    "PruningError",
    "Recipe",
    "RecoveryTracker",
    "Regrowth",
    "Score",
    "Shape",
    "Shards",
    "Share",
    "Steered",
    "View",
    "allr",
    "any_process",
    "apply_masks_",
    "automatic",
    "broadcast_buffers",
    "dense_start",
    "finite",
    "first_line",
    "has_momentum",
    "kept",
    "layer_targets",
    "leave_group",
    "levers",
    "local",
    "lr_constant",
    "lr_cosine",
    "lr_drop",
    "lr_factor",
    "lr_linear",
    "lr_warmup",
    "magnitude",
    "magprune",
    "mask_distance",
    "momentum_name",
    "part",
    "pattern_of",
    "printable",
    "prunable_parameters",
    "random_scores",
    "ranked",
    "recipes",
    "refuse_non_finite",
    "refuse_transposed",
    "refuse_unfit",
    "refuse_without_momentum",
    "refuse_without_restart",
    "restored",
    "row_counts",
    "schedules",
    "settings",
    "several_processes",
    "sparsity",
    "whole",
    "with_dense_start",
    *(each.__name__ for each in _METHODS_AND_SHARES),
]
