"""Accuracy for the Trainer."""

import numpy as np
from torch import Tensor
from transformers import EvalPrediction


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Top-1 accuracy, for `compute_metrics`."""
    return {"accuracy": float(np.mean(prediction.predictions == prediction.label_ids))}


def keep_top1(logits: Tensor, labels: Tensor) -> Tensor:
    """The predicted class, for `preprocess_logits_for_metrics`: the Trainer need not gather whole logits."""
    return logits.argmax(dim=-1)
