"""What a task gives the Trainer: batches and metrics, worked by hand."""

import torch
from transformers import EvalPrediction

from hf_cyclical.formats import CLASSIFICATION, DETECTION, SEGMENTATION
from hf_cyclical.training import task_arguments


def test_a_classifier_has_batches_of_its_columns_and_top_k_accuracy():
    arguments = task_arguments(CLASSIFICATION)
    example = {"pixel_values": torch.zeros(3, 8, 8), "labels": torch.tensor(2)}
    batch = arguments["data_collator"]([example, example])
    assert tuple(batch) == CLASSIFICATION.columns
    assert batch["pixel_values"].shape == (2, 3, 8, 8)

    logits = torch.tensor([[0.1, 0.9, 0.0], [0.2, 0.3, 0.5], [0.9, 0.05, 0.05]])
    ranked = arguments["preprocess_logits_for_metrics"](logits, None)
    values = arguments["compute_metrics"](EvalPrediction(ranked.numpy(), torch.tensor([1, 2, 2]).numpy()))
    assert values == {"accuracy": 2 / 3}
    assert any(name.endswith(CLASSIFICATION.metrics) for name in values)


def test_other_tasks_have_the_users_own():
    assert task_arguments(SEGMENTATION) == task_arguments(DETECTION) == {}
