"""TV-PGD: Algorithm 1 of the paper."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from .choices import View
from .errors import PruningError
from .line3 import Line3, before_steps
from .masks import apply_masks_
from .moments import KEEP, RANKING, refuse_without_momentum, refuse_without_restart, restart_momentum_
from .recipes import Recipe
from .rows import RowCounts, row_counts
from .shards import Shards, local, part, refuse_different, restored, whole
from .topk import Masks


class TVPGD:
    """Time-varying projected gradient descent: call `step(t)` right after the `optimizer.step()` of every update t.

    The weights are masked in place, so that outside the optimizer's step the model is an ordinary sparse model.
    Gradients are left alone, and so is the optimizer's state unless the recipe's `moments` say otherwise: a pruned
    weight carries its update when masks are chosen, which is what lets the right weights return.

    Attributes:
        params: The weights to prune, by name.
        recipe: s, eta, update_at, and how masks are chosen.
        optimizer: The optimizer, which some recipes need: to mask its momentum, or to choose by gradients.
        replicas: The processes that each hold a copy of the weights (DDP), if there are several: the masks are compared
            across them at each choice. Weights that are split among processes (FSDP2) need no such thing.
        masks: The masks M, True where a weight is kept; of weights that are split, those of the part that is here.
        t: The update after the last one that `step` handled.
        s_now: The sparsity of the last choice of masks.

    Example:
        >>> recipe = cyclical(s_t=0.9, T=1000)
        >>> pruner = TVPGD(prunable_parameters(model), recipe)
        >>> scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.eta)
        >>> for t, (x, y) in enumerate(batches):
        ...     loss(model(x), y).backward()
        ...     optimizer.step()
        ...     pruner.step(t)
        ...     scheduler.step()
        ...     optimizer.zero_grad()
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        recipe: Recipe,
        *,
        optimizer: Optimizer | None = None,
        replicas: dist.ProcessGroup | None = None,
    ) -> None:
        self.params = dict(params)
        self.recipe = recipe
        self.optimizer = optimizer
        self.replicas = replicas
        self._refuse_optimizer()
        self.shards = Shards.of(self.params.values())
        self.masks: Masks = {
            name: local(p) != 0 if recipe.keep_zeros else torch.ones_like(local(p), dtype=torch.bool)
            for name, p in self.params.items()
        }
        self.t = 0
        self.s_now = 0.0
        self._paused = False
        self._line3: Line3 | None = None
        if recipe.intervenes and optimizer is not None:
            self._line3 = Line3(optimizer, self.params, dense=recipe.straight_through)
            self._hook = before_steps(optimizer, self._begin_line_3)

    @torch.no_grad()
    def step(self, t: int) -> bool:
        """Lines 4 to 8 for update t, line 3 being the optimizer's. True if the masks were chosen again."""
        with self._update(t) as recipe:
            if renewed := recipe.update_at(t):  # line 4
                self._choose(t, recipe.s(t))  # line 5: M <- magprune(theta, s(t))
            if recipe.project_at(t):
                self._project()  # line 7: theta <- theta * M
        return renewed

    @contextmanager
    def _update(self, t: int) -> Iterator[Recipe]:
        """What surrounds lines 4 to 8: the end of a line 3 in which the recipe intervenes, the optimizer's state."""
        self._end_line_3(t)
        yield self.recipe
        self._change_moments(t)
        self.t = t + 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For steps of the optimizer that are no updates, as torch makes to load or save the state of split weights."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def _begin_line_3(self) -> None:
        if self._line3 is not None and not self._paused:
            self._line3.begin(held=self.recipe.hold_at(self.t))

    def _end_line_3(self, t: int) -> None:
        if self._line3 is None:
            return
        if t != self.t:
            raise PruningError(f"update {t} comes after update {self.t - 1}: call step once for each, in their order")
        self._line3.end()

    def _project(self) -> None:
        if self._line3 is not None:
            self._line3.put_aside(self.masks)
        apply_masks_(self.params, self.masks)

    def _choose(self, t: int, s: float) -> None:
        self.recipe.forget(self.optimizer, self.params, self.masks)
        self.recipe.choose(View(self.params, self.masks, t, self.optimizer, self.s_now), s, self.masks)
        self.s_now = s
        if self.replicas is not None:
            refuse_different(self.masks, self.replicas)

    def _change_moments(self, t: int) -> None:
        if self.optimizer is None:
            return
        if self.recipe.project_at(t):
            self.recipe.moments.act(self.optimizer, self.params, self.masks)
        if self.recipe.restart_at(t):
            restart_momentum_(self.optimizer)

    def _refuse_optimizer(self) -> None:
        recipe, restarts = self.recipe, self.recipe.restarts
        if self.optimizer is None:
            if recipe.moments is not KEEP or restarts:
                raise PruningError("this recipe changes the optimizer's momentum: give TVPGD the optimizer")
            if recipe.intervenes or recipe.needs_momentum:
                raise PruningError("this recipe changes the optimizer's steps, or reads them: give TVPGD the optimizer")
            return
        recipe.moments.refuse(self.optimizer, self.params)
        if restarts:
            refuse_without_restart(type(self.optimizer))
        if recipe.needs_momentum:
            refuse_without_momentum(self.optimizer, self.params, RANKING)

    @property
    def at_target(self) -> bool:
        """Whether the masks are those of the target sparsity, and not of a moment on the way to it."""
        return self.s_now >= self.recipe.s_t

    @property
    def sparsity(self) -> float:
        """Fraction of the weights that the masks drop, measured."""
        total = sum(p.numel() for p in self.params.values())
        return 1 - sum(self.kept_by_layer().values()) / total if total else 0.0

    def kept_by_layer(self) -> dict[str, int]:
        """Number of weights that the masks keep in each layer, measured."""
        return self._totals([int(mask.count_nonzero()) for mask in self.masks.values()])

    def rows_by_layer(self, row_floor: int = 0) -> dict[str, RowCounts]:
        """What the masks keep of the rows of each weight, a convolution's filters."""
        counts = [row_counts(mask, row_floor) for mask in self.masks.values()]
        totals = [self._totals([count[i] for count in counts]) for i in range(len(RowCounts._fields))]
        return {name: RowCounts(*(total[name] for total in totals)) for name in self.masks}

    @property
    def largest(self) -> float:
        """The largest magnitude of all weights."""
        parts = [local(p) for p in self.params.values()]
        return self.shards.max(max(float(w.abs().max()) if w.numel() else 0.0 for w in parts))

    def _totals(self, counts: list[int]) -> dict[str, int]:
        return dict(zip(self.masks, self.shards.totals(counts, _device(self.masks)), strict=True))

    @property
    def dense(self) -> bool:
        """Whether the weights hold more than the masks keep: only between two projections of gradual_recovery."""
        return self.s_now > 0 and not self.recipe.project_at(self.t - 1)

    @property
    def hides(self) -> bool:
        """Whether there are values which the masks hide: the weights are dense, or dense ones are put aside."""
        return self.dense or (self.s_now > 0 and self._line3 is not None and self.recipe.straight_through)

    @contextmanager
    def masked(self) -> Iterator[None]:
        """The model as theta * M, to evaluate or save it, with the weights restored afterwards."""
        if not self.dense:
            yield
            return
        with restored(self.params.values()):
            apply_masks_(self.params, self.masks)
            yield

    def project_(self) -> None:
        """Theta <- theta * M, whatever the recipe says: for the end of a run. Dense weights put aside are given up."""
        apply_masks_(self.params, self.masks)
        if self._line3 is not None:
            self._hook.remove()
            self._line3 = None

    def state_dict(self) -> dict[str, Any]:
        """All that a run needs to resume from weights saved under `masked`, on any number of processes."""
        masks = {name: self.whole_mask(name) for name in self.masks}
        hidden = {name: self.hidden_values(name) for name in self.masks} if self.hides else {}
        return {"t": self.t, "s_now": self.s_now, "masks": masks, "hidden": hidden}

    def whole_mask(self, name: str) -> Tensor:
        """The mask of a layer in one piece."""
        return whole(self.masks[name], self.params[name])

    def hidden_values(self, name: str) -> Tensor:
        """The values that a layer's weights have where its mask is False."""
        return whole(self._hiding(name), self.params[name])[~self.whole_mask(name)]

    def _hiding(self, name: str) -> Tensor:
        """What holds the values of a layer that its mask hides."""
        aside = self._line3.aside if self._line3 is not None else {}
        return aside[name] if name in aside else local(self.params[name])

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of `state_dict`; the weights must be those that were saved with it."""
        masks = state["masks"]
        for name, p in self.params.items():
            if name not in masks or masks[name].shape != p.shape:
                there = tuple(masks[name].shape) if name in masks else "no mask"
                raise PruningError(f"the state does not fit: {name} has shape {tuple(p.shape)} here, {there} there")
        if unknown := sorted(set(masks) - set(self.masks)):
            raise PruningError(f"the state does not fit: {', '.join(unknown)} there, not among the pruned weights here")
        for name in self.masks:
            self.load_layer(name, masks[name], state["hidden"].get(name))
        self.t, self.s_now = state["t"], state["s_now"]

    @torch.no_grad()
    def load_layer(self, name: str, mask: Tensor, hidden: Tensor | None = None) -> None:
        """Take over the mask of a layer in one piece, and the values of the weights that it hides."""
        p = self.params[name]
        self.masks[name].copy_(part(mask, p))
        if self._line3 is not None and name in self._line3.aside:
            self._line3.aside[name].zero_()
        if hidden is not None:
            w, pruned = self._hiding(name), ~self.masks[name]
            values = torch.zeros(p.shape, dtype=w.dtype, device=w.device)
            values[~mask.to(w.device)] = hidden.to(w)
            w[pruned] = part(values, p)[pruned]


def _device(masks: Masks) -> torch.device:
    return next(iter(masks.values())).device
