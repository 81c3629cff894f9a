"""Classify images with a pruned model, on the engine for sparse models where it is installed and takes the model.

hf-cyclical predict FOLDER image.jpg [image.png ...] [--top 5]
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf_cyclical.core import PruningError, printable

from .command_line import Parser, fail

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import nn

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = Parser("predict", __doc__)
    parser.add_argument("source", metavar="FOLDER", help="the pruned model: a folder, or a Hub id")
    parser.add_argument("--revision", help="branch, tag or commit on the Hub")
    parser.add_argument("images", metavar="IMAGE", nargs="+", type=Path, help="image files")
    parser.add_argument("--top", type=int, default=5, help="classes to print for each image (5)")
    args = parser.parse_args(argv)
    if args.top < 1:
        parser.error(f"--top {args.top} must be at least 1")
    try:
        lines = _predict(args.source, args.revision, args.images, args.top)
    except (PruningError, OSError) as error:
        fail(error)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _predict(source: str, revision: str | None, paths: Sequence[Path], top: int) -> list[str]:
    import torch

    from hf_cyclical.models import class_names, image_processor, load, pixels_of

    images = [_read(path) for path in paths]
    model = load(source, revision)
    processor = image_processor(source, revision, model)
    run = _fastest(model)
    lines = []
    for path, image in zip(paths, images, strict=True):
        with torch.inference_mode():
            output = run(pixels_of(source, processor, image))
        scores = torch.softmax(getattr(output, "logits", output)[0], -1)
        names = class_names(source, revision, len(scores))
        best = scores.topk(min(top, len(scores)))
        lines += [f"{path}: {printable(names[int(i)])} {float(score):.1%}" for score, i in zip(*best, strict=True)]
    return lines


def _fastest(model: "nn.Module") -> "nn.Module":
    """The model on the engine, or as it is where that cannot be."""
    from hf_cyclical.engine import compile_model

    try:
        return compile_model(model)
    except PruningError as error:
        sys.stderr.write(f"In plain torch: {printable(str(error))}\n")
        return model


def _read(path: Path) -> "Image":
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            return opened.convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError) as error:
        raise PruningError(f"{path} cannot be read as an image: {error}") from error
