"""Pruned models with the report of a run that was never made, for tests of what is written about models."""

import json

import timm
import torch
from support.tiny_models import prune, save_family

from hf_cyclical import CycleReport, PruningConfig, PruningReport
from hf_cyclical.hub import stamp
from hf_cyclical.models import make_portable
from hf_cyclical.reports import LayerReport


def save_pruned(name, folder, s=0.9):
    """Save a pruned model of a family of transformers or of timm; gives the report that its run would have."""
    if name[0].isupper():
        model = save_family(name, folder)
        pruned, prefix = prune(model, s), ""
        model.save_pretrained(folder)
    else:
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=3)
        pruned, prefix = prune(model, s), "timm_model."
        timm.models.save_for_hf(model, folder, safe_serialization=True)
        make_portable(folder)
    params = dict(model.named_parameters())
    layers = [
        LayerReport(prefix + key, list(params[key].shape), params[key].numel(), params[key].numel() - zeros, 0)
        for key, zeros in pruned.items()
    ]
    cycles = [
        CycleReport(c, 12 * c, c, s, 0.01 * c, 7 * c, 0.1 * c, 0.01, True, {"accuracy": 0.5 + 0.1 * c}) for c in (1, 2)
    ]
    config = PruningConfig(target_sparsity=s, cycles=2, exclude=["head*"]).to_dict()
    parameters = sum(p.numel() for p in model.parameters())
    about = {"model": "timm/some.model", "model_revision": "0" * 40, "versions": {"torch": "2.9.1+cpu"}}
    return PruningReport(
        config, 24, 0, parameters, dense={"accuracy": 0.9}, cycles=cycles, layers=layers, about=about
    )  # fmt: skip


def save_stamped(name, folder, s=0.9):
    return stamp(folder, save_pruned(name, folder, s))


def edit_json(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
