"""Top-k accuracy: for the Trainer, and as `evaluate` metrics that load without a network."""

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from transformers import EvalPrediction

if TYPE_CHECKING:
    import evaluate


_TOP = 5


def top_k_accuracy(ranked: Any, labels: Any, k: int) -> float:
    """Fraction of the rows whose label is among the first `k` classes of the row.

    Args:
        ranked: Classes, the most probable first, (n, at least k).
        labels: The right classes, (n,).
        k: How many of the first classes count.
    """
    hits = np.asarray(ranked)[:, :k] == np.asarray(labels)[:, None]
    return float(hits.any(axis=1).mean())


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """`compute_metrics` for the Trainer: top-1 and, for more than five classes, top-5 accuracy of `rank_classes`."""
    ranked, labels = prediction.predictions, prediction.label_ids
    values = {"accuracy": top_k_accuracy(ranked, labels, 1)}
    if ranked.shape[1] == _TOP:
        values["top5_accuracy"] = top_k_accuracy(ranked, labels, _TOP)
    return values


def rank_classes(logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """`preprocess_logits_for_metrics` for the Trainer: the classes of the five largest logits, the largest first.

    With five classes or fewer only the first: top-5 means nothing there. The Trainer then need not gather the logits.
    """
    return logits.topk(_TOP if logits.shape[-1] > _TOP else 1, dim=-1).indices


def load_metric(k: int = 1) -> "evaluate.Metric":
    """Top-k accuracy as an `evaluate` metric: predictions are rows of ranked classes, references the right ones.

    >>> load_metric(5).compute(predictions=rank_classes(logits), references=labels)  # doctest: +SKIP
    {'top5_accuracy': 0.93}
    """
    import datasets
    import evaluate

    class TopKAccuracy(evaluate.Metric):
        def _info(self) -> evaluate.MetricInfo:
            rows = {"predictions": datasets.Sequence(datasets.Value("int64")), "references": datasets.Value("int64")}
            return evaluate.MetricInfo(
                description=f"Fraction of the rows whose label is among the first {k} ranked classes.",
                citation="",
                inputs_description="predictions: ranked classes; references: labels",
                features=datasets.Features(rows),
            )

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            return {"accuracy" if k == 1 else f"top{k}_accuracy": top_k_accuracy(predictions, references, k)}

    # In memory: by default evaluate writes every batch to a cache that all processes share.
    return TopKAccuracy(config_name=f"top{k}", keep_in_memory=True)
