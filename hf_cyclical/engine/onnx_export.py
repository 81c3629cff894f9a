"""ONNX files of pruned models, for engines other than ours: BatchNorm folded into the convolutions, zeros kept."""

import contextlib
import io
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.fx import GraphModule, Node

from hf_cyclical.core import PruningError

__all__ = ["export_onnx"]

FAILURES = (AssertionError, RuntimeError, TypeError, ValueError)
ALLOWED_ERROR = 1e-4  # of the outputs, relative to their largest


@torch.no_grad()
def export_onnx(model: nn.Module, path: Path, shape: tuple[int, int, int]) -> int:
    """Write a model as ONNX for any number of images of one shape, and check it with ONNX Runtime.

    Args:
        model: An image classifier.
        path: The file to write.
        shape: Channels, height and width of the images.

    Returns:
        How many zeros the weights of the file have.

    Raises:
        PruningError: If a package is missing, if the model cannot be exported, or if ONNX Runtime gives other outputs.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  what torch.onnx needs
    except ImportError as error:
        raise PruningError(f'the export needs {error.name}: pip install "hf_cyclical[onnx]"') from error
    partial = path.with_name(f".{path.name}.partial")  # what fails the check never has the name that was asked for
    with _quiet():
        try:
            folded = _folded(model.eval(), shape)
            names = {"input_names": ["pixel_values"], "output_names": ["logits"], "external_data": False}
            images = torch.zeros(2, *shape)
            torch.onnx.export(folded, (images,), partial, dynamo=True, dynamic_shapes=({0: Dim("batch")},), **names)
        except FAILURES as error:
            partial.unlink(missing_ok=True)
            raise PruningError(f"the model cannot be exported: {str(error).strip().splitlines()[0][:200]}") from error
    try:
        _check(model, partial, shape, onnxruntime)
        zeros = sum(int((onnx.numpy_helper.to_array(t) == 0).sum()) for t in onnx.load(partial).graph.initializer)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return zeros


@contextlib.contextmanager
def _quiet():
    """torch.onnx tells its progress on stdout and warns of what a user cannot change."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _folded(model: nn.Module, shape: tuple[int, int, int]) -> GraphModule:
    batch = ({0: Dim("batch")},)
    module = torch.export.export(model, (torch.zeros(2, *shape),), dynamic_shapes=batch, strict=False).module()
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten.batch_norm.default:
            _fold(module, node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _fold(module: GraphModule, norm: Node) -> None:
    """Make a BatchNorm part of the convolution before it, if nothing else uses that."""
    convolution = norm.args[0]
    if convolution.target is not torch.ops.aten.conv2d.default or len(convolution.users) > 1 or norm.args[5]:
        return
    weight, bias, mean, variance = (_tensor(module, arg) for arg in norm.args[1:5])
    kernel = _tensor(module, convolution.args[1])
    old_bias = _tensor(module, convolution.args[2]) if len(convolution.args) > 2 else None
    scale = torch.rsqrt(variance.double() + norm.args[7]) * (1 if weight is None else weight.double())
    shift = -mean.double() * scale + (0 if bias is None else bias.double())
    if old_bias is not None:
        shift = shift + old_bias.double() * scale
    values = kernel.double() * scale.reshape(-1, 1, 1, 1), shift
    name = norm.name
    with module.graph.inserting_before(convolution):
        nodes = []
        for part, value in zip(("weight", "bias"), values, strict=True):
            module.register_parameter(f"{name}_{part}", nn.Parameter(value.float(), requires_grad=False))
            nodes.append(module.graph.get_attr(f"{name}_{part}"))
    rest = convolution.args[3:]
    convolution.args = (convolution.args[0], *nodes, *rest)
    norm.replace_all_uses_with(convolution)
    module.graph.erase_node(norm)


def _tensor(module: GraphModule, arg: Node | None) -> Tensor | None:
    if arg is None:
        return None
    value = module
    for part in arg.target.split("."):
        value = getattr(value, part)
    return value


def _check(model: nn.Module, path: Path, shape: tuple[int, int, int], onnxruntime) -> None:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    images = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    found = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: images.numpy()})[0])
    output = model(images)
    expected = getattr(output, "logits", output)
    error = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12))
    if not error <= ALLOWED_ERROR:
        raise PruningError(f"ONNX Runtime's outputs differ by {error:.1e} of the largest one: the export is not usable")
