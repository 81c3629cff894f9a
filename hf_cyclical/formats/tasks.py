"""What image models are for: all that differs between a classifier, a segmenter and a detector, as one value each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """A task of the Hub.

    Attributes:
        tag: Its pipeline tag on the Hub.
        auto_class: The class of transformers that loads any model for it.
        mapping: The mapping of transformers from configs to models for it.
        head: How the names of its models' classes continue after the name of the architecture.
        noun: What such a model is called on its card.
        columns: What a batch holds, images first.
        metrics: How the names of its metrics end, the most telling first.
        measured_on: What evaluations are of, on the card.
        data_collator: What makes a batch of examples, by its room and name; the user's own if there is none.
        compute_metrics: What evaluations measure, likewise.
        preprocess_logits: What evaluations keep of a model's logits, likewise.
    """

    tag: str
    auto_class: str
    mapping: str
    head: str
    noun: str
    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    measured_on: str = "evaluation images"
    data_collator: str | None = None
    compute_metrics: str | None = None
    preprocess_logits: str | None = None

    @property
    def article(self) -> str:
        """Before the noun, at the start of a sentence."""
        return "An" if self.noun[0] in "aeiou" else "A"


CLASSIFICATION = Task(
    tag="image-classification",
    auto_class="AutoModelForImageClassification",
    mapping="MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    head="ForImageClassification",
    noun="image classifier",
    columns=("pixel_values", "labels"),
    metrics=("accuracy",),
    data_collator="data.stack_images",
    compute_metrics="training.accuracy",
    preprocess_logits="training.rank_classes",
)
SEGMENTATION = Task(
    tag="image-segmentation",
    auto_class="AutoModelForSemanticSegmentation",
    mapping="MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING",
    head="ForSemanticSegmentation",
    noun="semantic segmentation model",
    columns=("pixel_values", "labels"),
    metrics=("iou", "accuracy"),
    measured_on="pixels of the evaluation images",
)
DETECTION = Task(
    tag="object-detection",
    auto_class="AutoModelForObjectDetection",
    mapping="MODEL_FOR_OBJECT_DETECTION_MAPPING",
    head="ForObjectDetection",
    noun="object detector",
    columns=("pixel_values", "labels"),
    metrics=("map",),
    measured_on="objects in the evaluation images",
)
TASKS = (CLASSIFICATION, SEGMENTATION, DETECTION)


def task_of(config: Mapping[str, Any]) -> Task:
    """The task of a model by its config.json; classification if that names no model of another one."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    return next((task for task in TASKS if name.endswith(task.head)), CLASSIFICATION)
