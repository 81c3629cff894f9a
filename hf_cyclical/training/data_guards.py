"""What of the data and of its evaluation is refused before it is trained on, and what is never left out."""

from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader
from transformers import TrainingArguments

from hf_cyclical.core import PruningError

from .saving import WholeCheckpointTrainer


class WholeDataTrainer(WholeCheckpointTrainer):
    """Trains on at least one batch, and measures over all images."""

    def get_train_dataloader(self) -> DataLoader:
        """As in Trainer, which would train on nothing if there is not one complete batch."""
        loader = super().get_train_dataloader()
        refuse_no_batches(loader, self.train_dataset, self.args)
        return loader

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        """As in Trainer; `dataloader_drop_last` is for training, and leaves out no image here."""
        with self._all_images():
            return super().get_eval_dataloader(*args, **kwargs)

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        """As `get_eval_dataloader`."""
        with self._all_images():
            return super().get_test_dataloader(*args, **kwargs)

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As in Trainer, which would miss the metric of the best model only after a cycle."""
        metrics = super().evaluate(eval_dataset, *args, **kwargs)
        if self.whole_checkpoints and self.is_in_train and eval_dataset is None:
            refuse_missing_metric(self.args, metrics)
        return metrics

    @contextmanager
    def _all_images(self) -> Iterator[None]:
        asked = self.args.dataloader_drop_last
        self.args.dataloader_drop_last = asked and not self.whole_checkpoints
        try:
            yield
        finally:
            self.args.dataloader_drop_last = asked


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
