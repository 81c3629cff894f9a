"""The plan of a run: what will be pruned, when and how far, before anything is trained."""

from collections.abc import Container, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from hf_cyclical.config import PruningConfig
from hf_cyclical.core import Pattern, Recipe, View, layer_targets
from hf_cyclical.methods import METHODS, SHARES
from hf_cyclical.reports import align, classifier

from .distillation import Distillation, describe_distillation
from .distributed import describe_processes
from .rates import rate_part
from .recalibration import batch_norms, recalibration_batches
from .trainer import CyclicalPruningTrainer

_FEW = 5  # choices of masks in a cycle below which a rise is rather a jump
_FEW_KEPT = 10  # weights of a layer below which little can pass through it


def describe_plan(trainer: CyclicalPruningTrainer, *notes: str) -> str:
    """What `train()` would do, as text: layers, cycles, the update of every choice of masks, learning rates.

    Args:
        trainer: The trainer.
        notes: Lines on its data, and on whatever else belongs in the plan.
    """
    config = trainer.pruning
    said = [f"  {note}" for note in notes]
    if not config.prunes:
        return "\n".join(["Plan: nothing is pruned, as target_sparsity is 0", *said])
    recipe, params = trainer.plan(), trainer.prunable_parameters()
    dense, k = recipe.cycles[0].start, len(recipe.cycles)
    prunable = sum(p.numel() for p in params.values())
    parameters = sum(p.numel() for p in trainer.model.parameters())
    optimizer = trainer.optimizer.param_groups[0] if trainer.optimizer else {"lr": trainer.args.learning_rate}
    learning_rate = optimizer.get("initial_lr", optimizer["lr"])
    part = rate_part(trainer)
    now = _kept_now(config, params)
    kept = {name: now[name] for name in _known(config, params)}
    arranged = f", {config.arrangement.words}" if config.pattern else ""
    goal = f"sparsity {recipe.s_t:g}{arranged}, share {config.resolved('share')}"
    if config.layer_sparsity and len(kept) == len(params):
        goal += f"; with layer_sparsity {1 - sum(kept.values()) / prunable:.4g} over all layers"
    goal = "keep the zeros it has" if recipe.keep_zeros else goal
    lines = [
        f"Plan: {config.method}, {goal}",
        f"  {describe_processes(trainer)}, {trainer.args.device.type}, {_images_per_update(trainer)} images an update",
        *said,
        f"  {recipe.T:,} optimizer updates: {dense:,} dense, {recipe.T - dense:,} in {_count(k, 'cycle')}",
        *_lever_lines(trainer, recipe),
        *_allr_lines(trainer, learning_rate, part),
        f"  {prunable:,} of the model's {parameters:,} weights can be pruned, in {_count(len(params), 'layer')}:",
        "",
        _indent(align(_layer_rows(params, kept, config))),
        "",
        *_layer_lines(trainer, params, kept, now),
        _indent(align([["", "updates", "sparsity", "learning rate"], *_cycle_rows(recipe, part * learning_rate)])),
        "",
        *_mask_lines(recipe),
    ]
    return "\n".join(lines)


def _lever_lines(trainer: CyclicalPruningTrainer, recipe: Recipe) -> list[str]:
    """What the run is helped by, and at which cost."""
    teaching = Distillation.of(trainer.pruning, recipe)
    lines = _auto_lines(trainer, recipe)
    lines += [f"  {describe_distillation(teaching, trainer.model)}"] if teaching else []
    if trainer.pruning.recalibrate and batch_norms(trainer.model):
        again = f"statistics of BatchNorm from {_count(recalibration_batches(trainer), 'training batch', 'es')}"
        lines.append(f"  Recalibration: {again} for each evaluation and for the result.")
    if warmup := trainer.pruning.lr_warmup:
        falls = any(recipe.eta(cycle.start) > recipe.eta(cycle.start + 1) for cycle in recipe.cycles[1:])
        of = "the run" if falls else "each cycle"
        lines.append(f"  Warm-up: the learning rate rises to its start in the first {warmup:.3g} of {of}.")
    if trainer.pruning.tail:
        last = max(t for t in range(recipe.T) if recipe.update_at(t))
        lines.append(f"  Tail: the masks stay as they are from update {last:,} to the end.")
    return lines


def _allr_lines(trainer: CyclicalPruningTrainer, learning_rate: float, part: float) -> list[str]:
    if trainer.pruning.allr is None:
        return []
    why = "by the norm that pruning to the target takes from these weights"
    return [f"  ALLR: {part:.3g} of the learning rate {learning_rate:g}, {why}."]


def _auto_lines(trainer: CyclicalPruningTrainer, recipe: Recipe) -> list[str]:
    """What follows from the length of the run."""
    fitted = trainer.fitted()
    words = {"cycles": _count(len(recipe.cycles), "cycle"), "delta_t": f"masks every {_updates(fitted.delta_t)}"}
    if not (chosen := " and ".join(words[name] for name in trainer.pruning.automatic)):
        return []
    suit = "which suit" if chosen != "1 cycle" else "which suits"
    updates = _count(recipe.T - recipe.cycles[0].start, "update")
    lines = [f"  {chosen[0].upper()}{chosen[1:]}, {suit} {updates} of pruning (auto)."]
    if trainer.pruning.init_sparsity is not None and fitted.init_sparsity is None:
        lines.append(f"  init_sparsity {trainer.pruning.init_sparsity:g} has no effect, as there is no second cycle.")
    return lines


def _updates(n: int | str | None) -> str:
    return "update" if n == 1 else f"{n} updates"


def _images_per_update(trainer: CyclicalPruningTrainer) -> int:
    args = trainer.args
    return args.train_batch_size * args.gradient_accumulation_steps * args.world_size


def _layer_rows(params: Mapping[str, Tensor], kept: Mapping[str, int], config: PruningConfig) -> list[list[str]]:
    row_floor = config.resolved("row_floor") or 0
    rows = [["layer", "shape", "weights", "kept at the end"]]
    for name, p in params.items():
        by_rank = f"by rank, {config.arrangement.least(p.shape, row_floor):,} or more"
        left = f"{kept[name]:,}" if name in kept else by_rank
        rows.append([name, "x".join(map(str, p.shape)), f"{p.numel():,}", left])
    return rows


def _kept_now(config: PruningConfig, params: Mapping[str, Tensor]) -> dict[str, int]:
    """How many weights each layer would keep if the weights at the end were those it has now."""
    if METHODS[config.method].keeps_zeros:
        return {name: int(p.count_nonzero()) for name, p in params.items()}
    masks = {name: torch.empty_like(p, dtype=torch.bool) for name, p in params.items()}
    config.choice(View(params, masks, 0), config.resolved("target_sparsity"), masks)
    return {name: int(mask.count_nonzero()) for name, mask in masks.items()}


def _known(config: PruningConfig, params: Mapping[str, Tensor]) -> list[str]:
    """The layers of which it is known before training how many weights they keep at the end."""
    row = METHODS[config.method]
    if row.keeps_zeros or (SHARES[config.resolved("share")].ahead and not config.redistributes):
        return list(params)
    return list(layer_targets(params, config.layer_targets))


def _layer_lines(
    trainer: CyclicalPruningTrainer, params: Mapping[str, Tensor], kept: Mapping[str, int], now: Mapping[str, int]
) -> list[str]:
    """What to know of how the weights that stay are shared out among the layers."""
    config = trainer.pruning
    if METHODS[config.method].keeps_zeros:
        return []
    few = [f"{name} {n}" for name, n in kept.items() if n < _FEW_KEPT and n < params[name].numel()]
    by_rank = " or ".join(name for name, row in SHARES.items() if not row.ahead)
    advice = f"exclude such layers to keep them dense, or use share {by_rank}."
    lines = [f"  Few weights are left in {', '.join(few)}: {advice}"] if few else []
    lines += _row_lines(config, params, _printed(config, params, kept, now), kept, classifier(trainer.model, params))
    lines += _unfit_lines(config.arrangement, params)
    return [*lines, ""] if lines else []


def _printed(
    config: PruningConfig, params: Mapping[str, Tensor], kept: Mapping[str, int], now: Mapping[str, int]
) -> dict[str, int]:
    """How many weights layers keep without a floor of the rows: where there is one, those of which that is known."""
    if not config.resolved("row_floor"):
        # Not where they move between the layers, or where the first masks are random, by the seed of the run.
        by_weights = not config.redistributes and config.resolved("init_masks") != "random"
        return dict(now if by_weights else kept)
    without = _kept_now(replace(config, row_floor=0), params) if kept else {}
    return {name: without[name] for name in kept}


def _unfit_lines(pattern: Pattern, params: Mapping[str, Tensor]) -> list[str]:
    """The layers of which some weights do not have the pattern."""
    rest = {name: p.numel() - pattern.covers(p.shape) for name, p in params.items()}
    which = ", ".join(f"{name} {n:,}" for name, n in rest.items() if n)
    return [f"  Weights that fill no {pattern.unit} of {pattern} are pruned unstructured: {which}."] if which else []


def _row_lines(
    config: PruningConfig,
    params: Mapping[str, Tensor],
    printed: Mapping[str, int],
    known: Container[str],
    head: str | None,
) -> list[str]:
    """The layers that the target leaves fewer weights than they have rows, and what that means."""
    rows = {name: len(params[name]) for name in printed if params[name].dim() > 1}
    short = [name for name in rows if printed[name] < rows[name]]
    if not short:
        return []
    which = ", ".join(f"{name} {printed[name]} for {rows[name]}" for name in short)
    the = "The" if all(name in known for name in short) else "As the weights are now, the"
    lines = [f"  {the} target leaves some layers fewer weights than filters or outputs: {which}."]
    if floor := config.resolved("row_floor"):
        return [*lines, f"  They keep {floor} of each instead (row_floor), and the other layers make up for it."]
    if head in short and printed[head] + 1 < rows[head]:
        # Classes without a weight differ by their biases only: of those, one can win.
        most = f"at most {printed[head] + 1} of {rows[head]} classes can be told apart"
        lines.append(f"  {head} is the classifier: {'' if head in known else 'as the weights are now, '}{most}.")
    return [*lines, "  row_floor 1 keeps a weight of each."]


def _cycle_rows(recipe: Recipe, learning_rate: float) -> list[list[str]]:
    first = recipe.cycles[0].start
    phases = [("dense", range(first))] if first else []
    phases += [(f"cycle {i}", cycle) for i, cycle in enumerate(recipe.cycles, start=1)]
    rows = []
    for name, updates in phases:
        start, end = recipe.s(updates.start), recipe.s(updates.stop - 1)
        sparsity = "as it is" if recipe.keep_zeros else f"{start:g}" if start == end else f"{start:g} to {end:g}"
        rows.append([name, f"{updates.start:,}-{updates.stop - 1:,}", sparsity, _rates(recipe, updates, learning_rate)])
    return rows


def _rates(recipe: Recipe, updates: range, learning_rate: float) -> str:
    """The learning rates of a phase: each with the update it starts at if they are few, else where they lead."""
    changes = [updates.start] + [t for t in updates[1:] if recipe.eta(t) != recipe.eta(t - 1)]
    values = [f"{learning_rate * recipe.eta(t):g}" for t in changes]
    if len(changes) > 3:
        factors = [recipe.eta(t) for t in changes]
        highest = max(factors)
        parts = [f"{learning_rate * factors[0]:.2g}"] if factors[0] < highest else []
        parts.append(f"{'up to ' if parts else ''}{learning_rate * highest:g}")
        last = [f"to {learning_rate * factors[-1]:.2g}"] if factors[-1] < highest else []
        return (", " if len(parts) > 1 else " ").join([*parts, *last])
    return ", ".join([values[0], *(f"{value} from {t:,}" for value, t in zip(values[1:], changes[1:], strict=True))])


def _mask_lines(recipe: Recipe) -> list[str]:
    updates = [t for t in range(recipe.T) if recipe.update_at(t)]
    if not updates:
        return ["  Masks are never chosen again."]
    lines = [f"  Masks are chosen {_count(len(updates), 'time')}, after the updates"]
    for i, cycle in enumerate(recipe.cycles, start=1):
        inside = [t for t in updates if t in cycle]
        if inside:
            lines.append(f"    cycle {i}: {_progression(inside)}")
    ramps = [sum(t in cycle for t in updates) for cycle in recipe.cycles]
    if 1 < ramps[0] < _FEW and recipe.s(recipe.cycles[0].start) < recipe.s_t:
        lines.append(
            f"  That is {ramps[0]} times a cycle: a smaller delta_t would let the sparsity rise more gradually."
        )
    return lines


def _progression(numbers: list[int]) -> str:
    """Numbers as text, with runs of equal steps shortened: "0 to 80 by 10, 92"."""
    parts, i = [], 0
    while i < len(numbers):
        j = i + 1
        while j + 1 < len(numbers) and numbers[j + 1] - numbers[j] == numbers[i + 1] - numbers[i]:
            j += 1
        if j - i >= 2 and j < len(numbers):
            parts.append(f"{numbers[i]:,} to {numbers[j]:,} by {numbers[i + 1] - numbers[i]:,}")
            i = j + 1
        else:
            parts.append(f"{numbers[i]:,}")
            i += 1
    return ", ".join(parts)


def _count(n: int, noun: str, plural: str = "s") -> str:
    return f"{n:,} {noun}" + (plural if n != 1 else "")


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
