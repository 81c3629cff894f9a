"""Packed weights of a trained model: Gaussian ones are easier than those that training leaves."""

import math

import pytest
import timm
import torch
from safetensors.torch import save_file
from support.sparse_weights import same_tensors
from torch.nn.functional import cross_entropy

from hf_cyclical import magprune, prunable_parameters
from hf_cyclical.core import apply_masks_
from hf_cyclical.data import DataArguments, load_image_data
from hf_cyclical.formats import pack_file, read_packed


@pytest.fixture(scope="module")
def trained():
    """A network of the main job, and its accuracy on the digits that it has not seen."""
    data = load_image_data(DataArguments("digits"))
    torch.manual_seed(0)
    model = timm.create_model("cifar_resnet8", num_classes=10)
    pixels, labels = data.train.images / 127.5 - 1, data.train.labels
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12 * 15)
    for _ in range(12):
        for batch in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            cross_entropy(model(pixels[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        predicted = model.eval()(data.eval.images / 127.5 - 1).argmax(1)
    return model.state_dict(), list(prunable_parameters(model)), (predicted == data.eval.labels).float().mean()


@pytest.mark.parametrize("s", [0.9, 0.95, 0.98])
def test_is_within_the_bound(trained, s, tmp_path):
    state, names, accuracy = trained
    assert accuracy > 0.9
    tensors = {name: tensor.clone() for name, tensor in state.items()}
    params = {name: tensors[name] for name in names}
    apply_masks_(params, magprune(params, s))
    save_file(tensors, tmp_path / "a")
    summary = pack_file(tmp_path / "a", tmp_path / "b")
    n, kept = sum(p.numel() for p in params.values()), sum(int(p.count_nonzero()) for p in params.values())
    assert (summary.weights, summary.nonzero, summary.tensors) == (n, kept, len(names))
    entropy = -sum(p * math.log2(p) for p in (kept / n, 1 - kept / n))
    assert summary.payload_bytes <= (n * entropy + 32 * kept) / 8
    assert same_tensors(read_packed(tmp_path / "b"), tensors)
    if s == 0.9:  # a tenth of what was pruned; the file holds statistics of batch normalisation, too
        assert 0.08 < summary.payload_bytes / (4 * n) < 0.105
