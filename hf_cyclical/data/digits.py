"""scikit-learn's handwritten digits."""

import numpy as np
import torch

from hf_cyclical.core import PruningError
from hf_cyclical.formats import optional

from .arguments import DataArguments
from .image_data import ImageData, Split
from .sampling import hold_out, sample


def load_digits(args: DataArguments, seed: int) -> ImageData:
    """1,797 digits of 8x8 pixels, which come with scikit-learn; half are for evaluation, unless told."""
    for name in ("dataset_config_name", "eval_split", "image_column_name", "label_column_name", "streaming"):
        if getattr(args, name):
            raise PruningError(f"{name} has no meaning for the digits, which come with scikit-learn: leave it out")
    digits = optional("sklearn.datasets", "scikit-learn").load_digits()
    pixels = torch.from_numpy(digits.images / 16 * 255).round().to(torch.uint8)
    images = pixels.unsqueeze(1).expand(-1, 3, -1, -1).contiguous()
    labels = torch.from_numpy(digits.target)
    split = optional("sklearn.model_selection", "scikit-learn").train_test_split
    fraction = 0.5 if args.eval_fraction is None else args.eval_fraction
    try:
        train, test = split(np.arange(len(labels)), test_size=fraction, stratify=labels, random_state=0)
    except ValueError as error:
        raise PruningError(
            f"eval_fraction is {fraction:g}, and leaves classes of the digits without images: give one nearer to 0.5"
        ) from error
    eval_from = f"{fraction:.0%} of them"
    if args.holdout is not None:
        train, test = hold_out(labels, train, args.holdout)
        eval_from = f"{args.holdout:.0%} of the training images, held out"
    train, test = sample(train, args.max_train_samples, seed), sample(test, args.max_eval_samples, seed)
    return ImageData(
        name="digits",
        labels=[str(digit) for digit in digits.target_names],
        image_size=8,
        small=True,
        augment="none" if args.augment == "auto" else args.augment,
        train=Split(images[train], labels[train]),
        eval=Split(images[test], labels[test]),
        eval_from=eval_from,
    )
