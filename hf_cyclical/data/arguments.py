"""The arguments that choose the data."""

from dataclasses import dataclass, field
from typing import Literal

from hf_cyclical.core import PruningError


@dataclass
class DataArguments:
    """Which data."""

    _argument_group_name = "data"

    dataset_name: str | None = field(
        default=None,
        metadata={
            "help": "A Hub id (uoft-cs/cifar10, uoft-cs/cifar100, ILSVRC/imagenet-1k, any other of images), a folder "
            "of parquet files or of images, or digits: scikit-learn's handwritten digits, which need no download."
        },
    )
    dataset_config_name: str | None = field(
        default=None, metadata={"help": "Configuration of a data set that has several."}
    )
    train_split: str = field(default="train", metadata={"help": "Split to train on."})
    eval_split: str | None = field(
        default=None,
        metadata={"help": "Split to evaluate on: validation, else test, else a part of the training split."},
    )
    eval_fraction: float | None = field(
        default=None,
        metadata={
            "help": "Part of the training split to evaluate on where there is no other split: 0.1 if not given, and "
            "0.5 of the digits."
        },
    )
    holdout: float | None = field(
        default=None,
        metadata={
            "help": "Hold out such a part of the training images, the same part of each class and the same images "
            "whatever the seed, and evaluate on these: to choose settings without a look at the evaluation images. A "
            "model that was trained on all training images knows them."
        },
    )
    image_column_name: str | None = field(
        default=None, metadata={"help": "Column of the images: the only one with images if not given."}
    )
    label_column_name: str | None = field(
        default=None,
        metadata={"help": "Column of the classes: the only one with classes if not given; CIFAR-100's fine_label."},
    )
    augment: Literal["auto", "cifar", "shift", "imagenet", "none"] = field(
        default="auto",
        metadata={
            "help": "cifar: shift by up to an eighth of the side (4 pixels of 32, 1 of 8), black around it, and flip. "
            "shift: the same without the flip, for digits and letters. imagenet: random resized crop, flip. auto: "
            "cifar for small images of one size, imagenet for others, none for digits."
        },
    )
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Train on so many images, chosen at random; the first ones of a stream."}
    )
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Evaluate on so many images, chosen at random; the first ones of a stream."}
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read the data while training, with no copy on disk; needs max_steps."}
    )

    check_images: Literal["headers", "full", "none"] = field(
        default="headers",
        metadata={
            "help": "How to look for images that cannot be used, before training: by their headers (small ones are "
            "decoded), by decoding all, or not at all. Not for streams."
        },
    )
    skip_bad_images: bool = field(default=False, metadata={"help": "Leave out the images that the check finds."})

    def __post_init__(self) -> None:
        for name in ("max_train_samples", "max_eval_samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PruningError(f"{name} is {value}, and must be at least 1: leave it out to use all images")
        for name in ("eval_fraction", "holdout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise PruningError(f"{name} is {value}: give a number between 0 and 1")
        if self.holdout is not None and self.eval_split is not None:
            raise PruningError(f"holdout {self.holdout} contradicts eval_split {self.eval_split!r}: give one of them")
        if self.holdout is not None and self.streaming:
            raise PruningError(f"holdout {self.holdout} cannot be made of a stream: turn streaming off")
        if self.check_images not in ("headers", "full", "none"):
            raise PruningError(f"check_images is {self.check_images!r}: use headers, full or none")
        if self.skip_bad_images and (self.streaming or self.check_images == "none"):
            why = "streaming" if self.streaming else "check_images none"
            raise PruningError(
                f"skip_bad_images has no effect with {why}, as no image is checked: leave one of them out"
            )
        if self.augment not in ("auto", "cifar", "shift", "imagenet", "none"):
            raise PruningError(f"augment is {self.augment!r}: use auto, cifar, shift, imagenet or none")
