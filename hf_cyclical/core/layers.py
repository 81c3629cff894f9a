"""Which parameters of a model are pruned: the weights of its convolutions and linear maps, by name."""

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import Tensor, nn

from .errors import PruningError

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
PRUNABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)


def prunable_parameters(
    model: nn.Module, include: Sequence[str] | None = None, exclude: Sequence[str] | None = None
) -> dict[str, nn.Parameter]:
    """The weights to prune, by parameter name, in the model's order.

    Takes trainable weights of linear and convolution layers; biases, norms, embeddings and bare parameters (such as
    `nn.MultiheadAttention.in_proj_weight`) stay dense. A weight that several layers share is one parameter, under the
    name of the first, and is left out if any of its names is.

    Args:
        model: The model, not wrapped.
        include: Globs on layer names (`stage1.*`, `fc`); all layers if not given.
        exclude: Globs on layer names that stay dense.

    Raises:
        PruningError: If a pattern matches no layer, if nothing is left to prune, or if a layer's weight is not a plain
            parameter (as under `torch.nn.utils.parametrize` or `torch.nn.utils.prune`).
    """
    layers = {
        name: module for name, module in model.named_modules(remove_duplicate=False) if isinstance(module, PRUNABLE)
    }
    included = set(layers) if not include else matches("include", include, layers)
    excluded = matches("exclude", exclude or (), layers)
    dense = {id(layers[name].weight) for name in excluded}
    chosen: dict[int, tuple[str, nn.Parameter]] = {}
    for name in (name for name in layers if name in included - excluded):
        weight = layers[name]._parameters.get("weight")
        if weight is None:
            raise PruningError(
                f"the weight of {name} is not a plain parameter (parametrized or pruned by another tool): "
                "make it one (torch.nn.utils.parametrize.remove_parametrizations, torch.nn.utils.prune.remove) "
                "or exclude the layer"
            )
        if weight.requires_grad and id(weight) not in dense:
            chosen.setdefault(id(weight), (f"{name}.weight".removeprefix("."), weight))
    if not chosen:
        raise PruningError(
            f"nothing to prune: {len(layers)} linear and convolution layers in the model, "
            f"{len(included - excluded)} left by include={list(include or [])} and exclude={list(exclude or [])}, "
            "none of them with trainable weights"
        )
    return dict(chosen.values())


def refuse_transposed(model: nn.Module, params: Mapping[str, Tensor]) -> None:
    """Raise a PruningError if some of the weights have their inputs first, where patterns look for outputs."""
    chosen = {id(p) for p in params.values()}
    for name, module in model.named_modules():
        if isinstance(module, _TRANSPOSED) and id(module.weight) in chosen:
            raise PruningError(f"pattern does not fit {name}, a transposed convolution: exclude it, or use none")


def matches(field: str, patterns: Sequence[str], layers: Collection[str]) -> set[str]:
    """The layers, by name, that the patterns of a setting match.

    Raises:
        PruningError: If a pattern matches none.
    """
    found = set()
    for pattern in patterns:
        names = {name for name in layers if fnmatchcase(name, pattern) or fnmatchcase(f"{name}.weight", pattern)}
        if not names:
            near = get_close_matches(pattern, layers, n=3, cutoff=0.3) or list(layers)[:3]
            raise PruningError(f"{field} pattern {pattern!r} matches no layer: near names are {', '.join(near)}")
        found |= names
    return found
