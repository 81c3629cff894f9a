"""Top-1 and top-5 by hand, in the Trainer's form and as evaluate metrics, without a network."""

import evaluate
import numpy as np
import pytest
import torch
from transformers import EvalPrediction

from hf_cyclical.training import accuracy, load_metric, rank_classes
from hf_cyclical.training.metrics import top_k_accuracy

LOGITS = torch.tensor(
    [
        [9.0, 8, 7, 6, 5, 4, 3],  # label 0: first
        [9.0, 8, 7, 6, 5, 4, 3],  # label 4: fifth
        [9.0, 8, 7, 6, 5, 4, 3],  # label 5: sixth
        [3.0, 4, 5, 6, 7, 8, 9],  # label 5: second
    ]
)
LABELS = np.array([0, 4, 5, 5])


def test_rank_classes_orders_by_logit():
    assert rank_classes(LOGITS)[0].tolist() == [0, 1, 2, 3, 4]
    assert rank_classes(LOGITS)[3].tolist() == [6, 5, 4, 3, 2]


def test_hand_worked_values():
    ranked = rank_classes(LOGITS)
    assert top_k_accuracy(ranked, LABELS, 1) == 0.25
    assert top_k_accuracy(ranked, LABELS, 5) == 0.75


def test_in_the_trainers_form():
    prediction = EvalPrediction(predictions=rank_classes(LOGITS).numpy(), label_ids=LABELS)
    assert accuracy(prediction) == {"accuracy": 0.25, "top5_accuracy": 0.75}


def test_few_classes_have_no_top5():
    prediction = EvalPrediction(predictions=rank_classes(LOGITS[:, :3]).numpy(), label_ids=np.array([0, 0, 1, 2]))
    assert accuracy(prediction) == {"accuracy": 0.75}


def test_as_evaluate_metrics_on_their_own_batched_and_combined():
    ranked = rank_classes(LOGITS)
    assert load_metric(5).compute(predictions=ranked, references=LABELS) == {"top5_accuracy": 0.75}
    batched = load_metric(1)
    batched.add_batch(predictions=ranked[:2], references=LABELS[:2])
    batched.add_batch(predictions=ranked[2:], references=LABELS[2:])
    assert batched.compute() == {"accuracy": 0.25}
    both = evaluate.combine([load_metric(1), load_metric(5)])
    assert both.compute(predictions=ranked, references=LABELS) == {"accuracy": 0.25, "top5_accuracy": 0.75}


@pytest.mark.parametrize("k", [1, 3, 5])
def test_equals_a_naive_count(k):
    torch.manual_seed(k)
    logits, labels = torch.randn(200, 10), torch.randint(10, (200,))
    naive = np.mean([label in row.argsort(descending=True)[:k] for row, label in zip(logits, labels, strict=True)])
    assert top_k_accuracy(rank_classes(logits), labels, k) == pytest.approx(naive)
