"""What the tests of the engine share."""

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn

from hf_cyclical.core import prunable_parameters
from hf_cyclical.engine.graph import build_graph
from hf_cyclical.engine.native import host

SPARSITIES = st.sampled_from([0.0, 0.5, 0.9, 0.999, 1.0])
WIDTHS = st.sampled_from([None, 8, 4])  # vectors of this processor, of AVX2, of SSE and NEON
SIDES = st.integers(1, 19)
slow = settings(max_examples=20)


def sparsify(model, sparsity, seed=0):
    """Random zeros in every prunable weight, and BatchNorms and empty parameters that have something to say."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in prunable_parameters(model).values():
            parameter.mul_(torch.rand(parameter.shape, generator=generator) >= sparsity)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1, generator=generator)
                module.running_var.uniform_(0.5, 1.5, generator=generator)
    return model.eval()


def images(count, channels, height, width, seed=0):
    return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def assert_same_as_torch(model, pixels, *, width=None, threads=None, native=True):
    """The engine gives what torch gives, within 1e-4 of the largest output; the first graph that was built.

    Args:
        threads: How many; one, then three, if not given. Three threads cut small images into uneven bands.
        native: Without any call of torch.
    """
    expected = model(pixels)
    expected = getattr(expected, "logits", expected)
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    graphs = []
    for number in (1, 3) if threads is None else (threads,):
        graph = build_graph(model, tuple(pixels.shape[1:]), host(width), number)
        graph.always_share = True
        for _ in range(2):  # the second time, buffers hold what the first one left
            ours = graph.run(pixels)
            ours = getattr(ours, "logits", ours)
            assert ours.shape == expected.shape
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4 * max(largest, 1e-3))
        if native:
            assert graph.torch_nodes == []
        graphs.append(graph)
    return graphs[0]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-4 * float(b.abs().max()))
