"""Depthwise convolutions, pooling and stems give what torch gives, whatever the shapes."""

from unittest.mock import patch

import pytest
import torch
from engine.checks import SIDES, SPARSITIES, WIDTHS, assert_same_as_torch, images, slow, sparsify
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hf_cyclical.engine import stems


@slow
@given(
    st.integers(1, 7),
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.integers(1, 2),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.tuples(SIDES, st.integers(1, 150)),
    SPARSITIES,
    st.integers(1, 3),
    WIDTHS,
    st.sampled_from([nn.ReLU6(), nn.SiLU(), nn.Identity()]),
)
def test_depthwise_convolution(channels, kernel, stride, padding, size, sparsity, batch, width, activation):
    size = [max(n, k - 2 * p) for n, k, p in zip(size, kernel, padding, strict=True)]
    torch.manual_seed(0)
    layers = nn.Conv2d(3, channels, 1), nn.Conv2d(channels, channels, kernel, stride, padding, groups=channels)
    model = nn.Sequential(layers[0], sparsify(layers[1], sparsity), activation, nn.Conv2d(channels, 2, 1))
    assert_same_as_torch(model.eval(), images(batch, 3, *size), width=width, native=False)


@slow
@given(
    st.sampled_from(["max", "average"]),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(1, 3),
    st.tuples(SIDES, SIDES),
    st.booleans(),
    WIDTHS,
)
def test_pooling(kind, kernel, stride, size, padded, width):
    padding = [k // 2 if padded else 0 for k in kernel]
    size = [max(n, k) for n, k in zip(size, kernel, strict=True)]
    pool = {"max": nn.MaxPool2d, "average": nn.AvgPool2d}[kind](kernel, stride, padding)
    # Negative values: a padding of zeros would be the largest.
    assert_same_as_torch(nn.Sequential(pool), images(2, 3, *size) - 5, width=width, native=False)


@slow
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(1, 2),
    st.tuples(SIDES, st.integers(1, 150)),
    st.booleans(),
    WIDTHS,
)
def test_max_pooling_after_a_relu(kernel, stride, size, padded, width):
    padding = [k // 2 if padded else 0 for k in kernel]
    size = [max(n, k, 2) for n, k in zip(size, kernel, strict=True)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 1), nn.ReLU(), nn.MaxPool2d(kernel, stride, padding))
    graph = assert_same_as_torch(model.eval(), images(2, 3, *size), width=width)
    assert [row.kernel.name for row in graph.program.rows[-2:]] == ["window maximum", "copy"]


@pytest.mark.parametrize("sparsity", [0.0, 0.9])
@pytest.mark.parametrize("last", [nn.Conv2d(42, 42, 3, 2, 1, groups=42), nn.MaxPool2d(3, 2, 1)], ids=str)
@pytest.mark.parametrize(("width", "threads"), [(None, 1), (None, 2), (4, 1)])
def test_a_large_tensor_is_computed_a_few_channels_at_a_time(sparsity, last, width, threads):
    torch.manual_seed(0)
    model = nn.Sequential(sparsify(nn.Conv2d(3, 42, 3), sparsity), nn.ReLU(), last).eval()
    graph = assert_same_as_torch(model, images(1, 3, 66 * threads, 67), width=width, threads=threads)
    rows = [row for row in graph.program.rows if row.kernel.name != "copy" and row.owner in (-1, 0)]
    assert len(rows) >= 4
    assert len({row.kernel.name for row in rows[::2]}) == len({row.kernel.name for row in rows[1::2]}) == 1
    largest = max(
        tensor.layout.channels for row in rows[::2] for tensor in row.tensors() if tensor.shape[1] == 66 * threads - 2
    )
    assert largest < 42


@slow
@given(
    st.tuples(st.integers(1, 4), st.sampled_from([4, 8, 20])),
    st.tuples(st.sampled_from([(1, 3), (1, 4), (2, 5), (2, 6), (2, 7)]), st.integers(1, 7)),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.integers(1, 5), st.integers(1, 150)),
    WIDTHS,
    st.integers(1, 2),
)
def test_a_dense_stem(channels, rows_columns, padding, size, width, threads):
    (stride, rows), columns = rows_columns
    inputs, outputs = channels
    height = (4 * size[0] - 1) * stride + rows - 2 * padding[0]
    if height < 1:
        return
    torch.manual_seed(0)
    layer = nn.Conv2d(inputs, outputs, (rows, columns), stride, padding)
    model = nn.Sequential(layer, nn.ReLU(), nn.Conv2d(outputs, 2, 1)).eval()
    pixels = images(2, inputs, height, max(size[1], columns - 2 * padding[1]))
    with patch.object(stems, "WORTH", 0):
        graph = assert_same_as_torch(model, pixels, width=width, threads=threads, native=False)
    assert "Winograd" in graph.choices[0].why
