"""Tiny models of other tasks with data and a collator of the user's own."""

import torch
from torch.utils.data import Dataset
from transformers import (
    SegformerConfig,
    SegformerForSemanticSegmentation,
    SegformerImageProcessor,
    TrainingArguments,
    YolosConfig,
    YolosForObjectDetection,
    YolosImageProcessor,
)

from hf_cyclical import CyclicalPruningTrainer

LABELS = {0: "cat", 1: "dog", 2: "eel"}
SIDE = 32


class Scenes(Dataset):
    """Random images with what a task says of them."""

    def __init__(self, label):
        self.label = label

    def __len__(self):
        return 8

    def __getitem__(self, i):
        pixels = torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(i))
        return {"pixel_values": pixels, "labels": self.label(i)}


def segmented(i):
    return torch.full((SIDE, SIDE), i % 3)


def boxed(i):
    return {"class_labels": torch.tensor([i % 3]), "boxes": torch.tensor([[0.5, 0.5, 0.2, 0.3]])}


def stack(rows):
    labels = [row["labels"] for row in rows]
    stacked = torch.stack(labels) if isinstance(labels[0], torch.Tensor) else labels
    return {"pixel_values": torch.stack([row["pixel_values"] for row in rows]), "labels": stacked}


def pixel_accuracy(prediction):
    return {"mean_iou": 0.25, "mean_accuracy": 0.5}


def make_segmenter():
    sizes = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_attention_heads": [1, 2], "decoder_hidden_size": 16}
    blocks = {"num_encoder_blocks": 2, "sr_ratios": [2, 1], "strides": [4, 2], "patch_sizes": [7, 3]}
    config = SegformerConfig(**sizes, **blocks, mlp_ratios=[2, 2], id2label=LABELS)
    return SegformerForSemanticSegmentation(config), SegformerImageProcessor(size={"height": SIDE, "width": SIDE})


def make_detector():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = YolosConfig(**sizes, image_size=[SIDE, SIDE], patch_size=8, num_detection_tokens=4, id2label=LABELS)
    return YolosForObjectDetection(config), YolosImageProcessor(size={"shortest_edge": SIDE, "longest_edge": SIDE})


def make_task_trainer(folder, task, **arguments):
    torch.manual_seed(0)
    segments = task == "segmentation"
    model, processor = make_segmenter() if segments else make_detector()
    defaults = {
        "output_dir": str(folder), "max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 1e-3,
        "report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "use_cpu": True,
        "dataloader_pin_memory": False, "remove_unused_columns": False, "eval_do_concat_batches": False,
        "max_grad_norm": 0.0,
    }  # fmt: skip
    data = Scenes(segmented if segments else boxed)
    return CyclicalPruningTrainer(
        model,
        TrainingArguments(**(defaults | arguments)),
        pruning={"target_sparsity": 0.8, "cycles": 2, "delta_t": 1},
        train_dataset=data,
        eval_dataset=data,
        data_collator=stack,
        processing_class=processor,
        compute_metrics=pixel_accuracy if segments else None,
    )


def finish(folder, task):
    """A finished run of the task, saved with all that describes it."""
    trainer = make_task_trainer(folder, task)
    trainer.train()
    trainer.about = {"dataset": "user/scenes"}
    trainer.save_pruned(folder)
    return trainer
