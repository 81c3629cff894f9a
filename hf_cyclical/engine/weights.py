"""Weights in the order in which the kernels read them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .matvec import CHAINS

__all__ = ["Dense", "Matrix", "Pairs", "dense_rows", "matvec_pairs", "matvec_rows", "sparse_pairs"]

PAIR = np.dtype([("offset", np.int32), ("weight", np.float32)])


@dataclass(frozen=True)
class Matrix:
    """Weights of a layer as a matrix: a row per output, and for each column where its input is.

    Attributes:
        weights: Of shape (outputs, columns).
        offsets: Bytes from an output pixel to that input, per column.
        channels: The input channel of each column, by which columns are grouped into blocks.
        shifts: Bytes to add to all offsets of an output: where its group's inputs begin.
    """

    weights: np.ndarray
    offsets: np.ndarray
    channels: np.ndarray
    shifts: np.ndarray

    @cached_property
    def nonzero(self) -> tuple[np.ndarray, np.ndarray]:
        """Outputs and columns of the weights that are not zero, output by output."""
        return np.nonzero(self.weights)


@dataclass(frozen=True)
class Pairs:
    """Nonzero weights as (offset, weight), block by block and output by output."""

    blocks: int
    starts: np.ndarray
    pairs: np.ndarray


@dataclass(frozen=True)
class Dense:
    """All weights, block by block and group of outputs by group."""

    blocks: int
    block_inputs: int
    starts: np.ndarray
    weights: np.ndarray
    offsets: np.ndarray


def sparse_pairs(matrix: Matrix, block_channels: int, multiple: int = 1) -> Pairs:
    """The nonzero weights, in blocks of so many input channels.

    Args:
        matrix: All weights.
        block_channels: Input channels in a block.
        multiple: The pairs of each output and block are filled up to a multiple of this, with zero weights.
    """
    outputs, columns = matrix.nonzero
    channels = matrix.channels[columns]
    blocks = int(matrix.channels.max(initial=0)) // block_channels + 1
    place = (channels // block_channels) * len(matrix.weights) + outputs
    order = np.argsort(place, kind="stable") if blocks > 1 else np.arange(len(place))
    counts = np.bincount(place, minlength=blocks * len(matrix.weights))
    filled = -(-counts // multiple) * multiple
    starts, ends = np.concatenate([[0], np.cumsum(filled)]), np.cumsum(counts)
    # Where each pair goes; what is filled up repeats an offset of the same output, which is read anyway.
    where = starts[place[order]] + np.arange(len(order)) - (ends - counts)[place[order]]
    pairs = np.zeros(int(starts[-1]) + 1, PAIR)  # one more, so that there is never nothing
    offsets = (matrix.offsets[columns] + matrix.shifts[outputs])[order]
    some = np.zeros(len(counts), np.int64)
    some[place[order]] = offsets
    pairs["offset"][:-1] = np.repeat(some, filled)
    pairs["offset"][where] = offsets
    pairs["weight"][where] = matrix.weights[outputs, columns][order]
    return Pairs(blocks, (starts * PAIR.itemsize).astype(np.int32), pairs)


def dense_rows(matrix: Matrix, rows: int, block_inputs: int) -> Dense:
    """All weights for `rows` outputs at once, in blocks of so many inputs."""
    outputs, inputs = matrix.weights.shape
    parts, starts = [], [0]
    for first in range(0, inputs, block_inputs):
        block = matrix.weights[:, first : first + block_inputs]
        grouped = block.reshape(outputs // rows, rows, -1).transpose(0, 2, 1)
        parts.append(grouped.reshape(-1))
        starts += [starts[-1] + 4 * block.shape[1] * rows * (i + 1) for i in range(outputs // rows)]
    weights = np.ascontiguousarray(np.concatenate(parts), np.float32)
    return Dense(len(parts), block_inputs, np.array(starts, np.int32), weights, matrix.offsets.astype(np.int32))


def matvec_pairs(weights: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of each output, filled up with zero weights to whole chains; and where each output begins, in bytes."""
    counts = -(-np.count_nonzero(weights, axis=1) // CHAINS) * CHAINS
    starts = np.concatenate([[0], np.cumsum(counts)])
    pairs = np.zeros(max(int(starts[-1]), 1), PAIR)
    outputs, inputs = np.nonzero(weights)
    rank = np.arange(len(outputs)) - np.searchsorted(outputs, outputs)
    pairs["offset"][starts[outputs] + rank] = inputs * stride
    pairs["weight"][starts[outputs] + rank] = weights[outputs, inputs]
    return pairs, (starts * PAIR.itemsize).astype(np.int32)


def matvec_rows(weights: np.ndarray, group: int) -> np.ndarray:
    """For each group of outputs, for each input, one float per output; outputs filled up with zeros."""
    outputs, inputs = weights.shape
    padded = np.zeros((-(-outputs // group) * group, inputs), np.float32)
    padded[:outputs] = weights
    return np.ascontiguousarray(padded.reshape(-1, group, inputs).transpose(0, 2, 1))
