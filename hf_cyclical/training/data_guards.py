"""What of the data and of its evaluation is refused before it is trained on."""

from collections.abc import Mapping, Sized
from typing import Any

from torch.utils.data import DataLoader
from transformers import TrainingArguments

from hf_cyclical.core import PruningError


def refuse_no_batches(loader: DataLoader, dataset: Any, args: TrainingArguments) -> None:
    """Raise a PruningError if the training images do not fill a single batch, and incomplete ones are left out."""
    if isinstance(dataset, Sized) and args.dataloader_drop_last and not len(loader):
        raise PruningError(
            f"the {len(dataset):,} training images do not fill a batch of {args.train_batch_size}, and "
            "dataloader_drop_last leaves out smaller ones: lower per_device_train_batch_size, or turn it off"
        )


def refuse_missing_metric(args: TrainingArguments, metrics: Mapping[str, Any]) -> None:
    """Raise a PruningError if an evaluation lacks the metric by which the best model would be chosen."""
    wanted = args.metric_for_best_model
    if wanted is not None and f"eval_{wanted.removeprefix('eval_')}" not in metrics:
        there = ", ".join(name.removeprefix("eval_") for name in metrics if name.startswith("eval_"))
        raise PruningError(
            f"metric_for_best_model {wanted!r} is not computed by the evaluation: use one of {there}, or leave it out"
        )
