"""Every operator of the engine gives what torch gives, whatever the shapes."""

import pytest
import torch
from engine.checks import SIDES, SPARSITIES, WIDTHS, assert_same_as_torch, images, slow, sparsify
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from hf_cyclical.engine.graph import build_graph
from hf_cyclical.engine.native import host


@slow
@given(
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 1, 1, 2, 3])),
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.integers(1, 2),
    st.tuples(SIDES, SIDES),
    SPARSITIES,
    st.integers(1, 3),
    WIDTHS,
    st.booleans(),
)
def test_convolution(channels, kernel, stride, padding, dilation, size, sparsity, batch, width, bias):
    inputs, outputs, groups = channels
    reach = [dilation * (k - 1) + 1 for k in kernel]
    size = [max(n, r - 2 * p) for n, r, p in zip(size, reach, padding, strict=True)]
    torch.manual_seed(0)
    layer = nn.Conv2d(
        inputs * groups, outputs * groups, kernel, stride, padding, dilation=dilation, groups=groups, bias=bias
    )
    model = sparsify(nn.Sequential(layer), sparsity)
    assert_same_as_torch(model, images(batch, inputs * groups, *size), width=width, native=False)


class Residual(nn.Module):
    """Everything that becomes part of a convolution: BatchNorm, a residual sum, an activation."""

    def __init__(self, channels, activation):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.activation = activation

    def forward(self, x):
        x = self.first(x)
        return self.activation(self.norm(self.conv(x)) + x)


ACTIVATIONS = [nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Hardswish()]
ACTIVATIONS += [nn.Sigmoid(), nn.Tanh(), nn.Hardsigmoid(), nn.Hardtanh(-0.5, 0.25), nn.Identity()]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("width", [None, 4])
def test_what_follows_a_convolution_becomes_part_of_it(activation, width):
    torch.manual_seed(0)
    graph = assert_same_as_torch(sparsify(Residual(8, activation), 0.9), images(2, 3, 9, 11), width=width)
    assert [row.kernel.name for row in graph.program.rows].count("combine") == 0


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_an_activation_of_its_own_at_large_and_small_values(activation):
    model = nn.Sequential(activation, nn.Flatten(1), activation)
    pixels = torch.linspace(-120, 120, 2 * 3 * 5 * 7).reshape(2, 3, 5, 7)
    assert_same_as_torch(model, pixels, native=False)


@slow
@given(st.integers(2, 70), st.integers(2, 150), SPARSITIES, st.integers(1, 3), WIDTHS)
def test_a_head_on_the_mean_of_all_pixels(inputs, outputs, sparsity, batch, width):
    torch.manual_seed(0)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(inputs, outputs), nn.ReLU())
    assert_same_as_torch(sparsify(model, sparsity), images(batch, inputs, 5, 7), width=width)


class Tokens(nn.Module):
    """Attention and a linear layer on tokens, after a class token and positions."""

    def __init__(self, heads, features, outputs):
        super().__init__()
        width = heads * features
        self.heads = heads
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.last = nn.Linear(width, outputs)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        return self.last(F.gelu(x + self.out(y)))[:, 0]


@slow
@given(
    st.integers(1, 3), st.sampled_from([4, 8, 20]), st.tuples(st.integers(1, 6), st.integers(1, 6)), SPARSITIES, WIDTHS
)
def test_attention_on_tokens(heads, features, patches, sparsity, width):
    torch.manual_seed(0)
    model = sparsify(Tokens(heads, features, 5), sparsity)
    assert_same_as_torch(model, images(2, 3, 4 * patches[0], 4 * patches[1]), width=width, native=False)


class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 2, 1)
        self.reduce, self.expand = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)

    def forward(self, x):
        x = self.conv(x)
        return x * torch.sigmoid(self.expand(F.silu(self.reduce(x.mean((2, 3), keepdim=True)))))


@pytest.mark.parametrize("size", [(8, 8), (13, 6)])
def test_squeeze_excite(size):
    torch.manual_seed(0)
    assert_same_as_torch(sparsify(SqueezeExcite(), 0.5), images(2, 3, *size))


class ShortcutOfZeros(nn.Module):
    """The CIFAR ResNets' shortcut: every second pixel, and channels of zeros on both sides."""

    def __init__(self, every_second):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.conv = nn.Conv2d(4, 10, 3, 2, 1)
        self.every_second = every_second

    def forward(self, x):
        x = F.relu(self.stem(x))
        return F.relu(self.conv(x) + F.pad(self.every_second(x), (0, 0, 0, 0, 2, 4)))


@pytest.mark.parametrize("size", [(8, 8), (13, 7)])
@pytest.mark.parametrize("every_second", [lambda x: x[:, :, ::2, ::2], nn.AvgPool2d(1, 2)], ids=["slice", "pooling"])
def test_a_shortcut_of_zeros_costs_no_kernel(size, every_second):
    torch.manual_seed(0)
    graph = assert_same_as_torch(sparsify(ShortcutOfZeros(every_second), 0.5), images(2, 3, *size))
    assert {row.kernel.name for row in graph.program.rows} <= {"copy", "sparse", "dense"}
    assert [choice.layer for choice in graph.choices] == ["stem", "conv"]


class InPlace(nn.Module):
    """An operation in place whose argument is used again afterwards, changed."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        y = self.conv(x)
        z = y.relu_()
        return y + z


def test_an_operation_in_place_changes_what_is_used_later():
    torch.manual_seed(0)
    assert_same_as_torch(sparsify(InPlace(), 0.5), images(1, 3, 6, 6))


class Unknown(nn.Module):
    """An operation that the engine does not have, between two that it has."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x):
        return self.second(torch.cumsum(self.first(x), 1)).topk(2, dim=1)[0]


def test_what_is_not_known_runs_in_torch():
    torch.manual_seed(0)
    graph = assert_same_as_torch(sparsify(Unknown(), 0.9), images(3, 3, 9, 9), native=False)
    assert {"aten.cumsum.default", "aten.topk.default"} <= set(graph.torch_nodes)
    assert [choice.layer for choice in graph.choices] == ["first", "second"]


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_several_threads(batch):
    torch.manual_seed(0)
    model = nn.Sequential(Residual(12, nn.ReLU()), SqueezeExcite2())
    assert_same_as_torch(sparsify(model, 0.9), images(batch, 3, 20, 20), threads=2)


class SqueezeExcite2(nn.Module):
    def __init__(self):
        super().__init__()
        self.expand = nn.Conv2d(12, 12, 1)

    def forward(self, x):
        return F.avg_pool2d(x * torch.sigmoid(self.expand(F.adaptive_avg_pool2d(x, 1))), 2)


@pytest.mark.parametrize(
    "last", [nn.Identity(), nn.MaxPool2d(2), nn.Sequential(nn.Tanh(), nn.MaxPool2d(3, 2, 1))], ids=str
)
def test_nan_in_an_image_is_seen_and_stays_in_its_image(last):
    torch.manual_seed(0)
    # Without zeros: a sparse kernel skips them, and torch multiplies them by NaN.
    model = sparsify(nn.Sequential(Residual(8, nn.ReLU()), last), 0.0)
    pixels = images(2, 3, 8, 8)
    pixels[0, 0, 4, 4] = torch.nan
    for threads in (1, 2):
        graph = build_graph(model, (3, 8, 8), host(), threads)
        graph.always_share = True
        for batch in (pixels, pixels[:1], pixels[1:], pixels):
            result = graph.run(batch)
            assert torch.equal(result.isnan(), model(batch).isnan())


class Mixed(nn.Module):
    """What stands alone: BatchNorm, channels after channels, LayerNorm over channels, sums and products."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.conv = nn.Conv2d(3, channels, 1)
        self.layer_norm = nn.LayerNorm(2 * channels)
        self.constant = nn.Parameter(torch.randn(2 * channels, 1, 1))

    def forward(self, x):
        x = self.conv(self.norm(x))
        x = torch.cat([x, F.relu(x)], 1)
        y = self.layer_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return (x * y + self.constant) * torch.sigmoid(y)


@slow
@given(st.integers(1, 9), st.tuples(st.integers(2, 19), st.integers(2, 19)), SPARSITIES, st.integers(1, 3), WIDTHS)
def test_operators_that_stand_alone(channels, size, sparsity, batch, width):
    torch.manual_seed(0)
    assert_same_as_torch(sparsify(Mixed(channels), sparsity), images(batch, 3, *size), width=width, native=False)
