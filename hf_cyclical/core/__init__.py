"""The paper in plain torch: schedules, recipes, magprune, TV-PGD and the measures of recovery."""

from .acdc import acdc as acdc
from .choices import Choice, Largest, Steered, View
from .errors import PruningError
from .layers import prunable_parameters
from .masks import apply_masks_, kept, magprune, refuse_non_finite, sparsity
from .momentum import KEEP, MASK, Moments
from .patterns import UNSTRUCTURED, Blocks, NofM, Pattern, pattern_of
from .recipes import Recipe
from .recipes import cyclical as cyclical
from .recipes import cyclical_lr as cyclical_lr
from .recipes import freeze as freeze
from .recipes import gradual as gradual
from .recipes import gradual_recovery as gradual_recovery
from .recipes import iterative as iterative
from .recipes import lr_constant as lr_constant
from .recipes import lr_cosine as lr_cosine
from .recipes import lr_drop as lr_drop
from .recipes import lr_linear as lr_linear
from .recipes import one_shot as one_shot
from .recipes import pgd as pgd
from .recipes import with_dense_start as with_dense_start
from .recovery import CycleRecovery, RecoveryTracker, mask_distance
from .shares import Layers, Share, erk, lamp, ranked, uniform
from .tvpgd import TVPGD

# Besides the recipes above.
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
    "Moments",
    "NofM",
    "Pattern",
    "PruningError",
    "Recipe",
    "RecoveryTracker",
    "Share",
    "Steered",
    "View",
    "apply_masks_",
    "erk",
    "kept",
    "lamp",
    "magprune",
    "mask_distance",
    "pattern_of",
    "prunable_parameters",
    "ranked",
    "refuse_non_finite",
    "sparsity",
    "uniform",
]
