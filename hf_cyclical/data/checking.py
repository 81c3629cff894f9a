"""Images that cannot be used are found before training, not in the middle of it."""

import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from hf_cyclical.core import PruningError
from hf_cyclical.formats import optional

from .arguments import DataArguments
from .decoding import MOST_PIXELS, EncodedImages, is_first_here, problem, shown_path

logger = logging.getLogger(__name__)

FEWEST_PER_PROCESS = 5000
_BATCH = 500


def checked(splits: Sequence[EncodedImages], args: DataArguments) -> list[EncodedImages]:
    """Images that can be used: all, or all the others if `skip_bad_images` says so.

    `datasets` keeps the results in its cache, so that the same images are looked at once.

    Raises:
        PruningError: If some cannot be used; the log names all of them.
    """
    if args.check_images == "none":
        return list(splits)
    problems = [_problems(images, full=args.check_images == "full") for images in splits]
    total = sum(map(len, problems))
    if not total:
        return list(splits)
    named = [line for images, found in zip(splits, problems, strict=True) for line in _lines(images, found)]
    for line in named if is_first_here() else ():
        logger.warning("%s", line)
    if not args.skip_bad_images:
        raise PruningError(
            f"{total:,} of {sum(map(len, splits)):,} images cannot be used, the first is {named[0]}: repair or remove "
            "them, or leave them out with skip_bad_images"
        )
    return [_without(images, found) for images, found in zip(splits, problems, strict=True)]


def _problems(images: EncodedImages, *, full: bool) -> dict[int, str]:
    """What is wrong with images, by their position."""
    datasets = optional("datasets", "datasets")
    everything = np.array_equal(images.chosen, np.arange(len(images.rows)))
    rows = images.rows if everything else images.rows.select(images.chosen)
    processes = min(len(os.sched_getaffinity(0)), len(rows) // FEWEST_PER_PROCESS)
    found = (
        rows.select_columns([images.column])
        .with_format("arrow")
        .map(
            partial(_look, column=images.column, full=full, most=MOST_PIXELS),
            batched=True,
            batch_size=_BATCH,
            remove_columns=[images.column],
            features=datasets.Features(problem=datasets.Value("string")),
            num_proc=processes if processes > 1 else None,
            desc=f"Checking the images of {images.split}",
        )
    )
    texts = found.with_format("arrow")[:].column("problem")
    bad = np.flatnonzero(texts.is_valid().to_numpy())
    return {int(position): texts[int(position)].as_py() for position in bad}


def _look(table: pa.Table, *, column: str, full: bool, most: int) -> pa.Table:
    """The problem of each image, null for none; `most` is there for the cache, which knows arguments by their value."""
    texts = [
        problem({"bytes": data.as_buffer(), "path": path.as_py()}, full=full)
        for chunk in table.column(column).chunks
        for data, path in zip(*_fields(chunk), strict=True)
    ]
    return pa.table({"problem": pa.array(texts, pa.string())})


def _fields(chunk: pa.StructArray) -> list[Any]:
    by_name = dict(zip((field.name for field in chunk.type), chunk.flatten(), strict=True))
    return [by_name["bytes"], by_name["path"]]


def _lines(images: EncodedImages, problems: dict[int, str]) -> list[str]:
    lines = []
    for position, text in problems.items():
        row = int(images.chosen[position])
        path = shown_path(images.rows[row][images.column])
        lines.append(f"image {row} of split {images.split!r}{path} ({text})")
    return lines


def _without(images: EncodedImages, problems: dict[int, str]) -> EncodedImages:
    kept = np.delete(images.chosen, list(problems))
    if not len(kept):
        raise PruningError(f"none of the images of split {images.split!r} can be used: give other data")
    if is_first_here():
        logger.warning("%d of %d images of split %r are left out", len(problems), len(images), images.split)
    return EncodedImages(images.rows, images.column, kept, images.split)
