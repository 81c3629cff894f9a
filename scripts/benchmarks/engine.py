"""What zeros gain on the engine, against the best dense fp32 engine of ONNX Runtime and OpenVINO."""

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import timm
import torch
from torch import nn

import hf_cyclical
from hf_cyclical.core import apply_masks_, magprune, prunable_parameters
from hf_cyclical.engine import OURS, RIVALS, Speed, measure_speed

from .common import Row, take_turns

SPARSITIES = (0.9, 0.95, 0.98)
# Side of the images, how many times as fast as dense fp32 at these sparsities (batch 1, one thread), and whether dense
# bf16 is to be beaten at 0.95, and two thirds of the ratios to be kept at batch 32.
MODELS = {
    "cifar_resnet20": (32, (4, 6, 9), True, True),
    "resnet18": (224, (2.5, 4, 6), True, True),
    "resnet50": (224, (2.5, 4, 6), True, False),
    "deit_small_patch16_224": (224, (2, 2.7, 3.5), True, False),
    "mobilenetv2_100": (224, (1.3, 1.5, 1.8), False, False),
}
SMALL = 64  # images of so many pixels take little time: more rounds
FEW_ZEROS, AS_TORCH = 0.5, 0.98  # at this sparsity, never slower than dense torch by more than 2 %
THREADS, GAIN = 2, 1.6
CIFAR = 32


def engine(options: argparse.Namespace) -> list[Row]:
    """Milliseconds of hf_cyclical.compile and of the best dense fp32 engine; the ratio is how many times as fast.

    Masks are random, the same share in each layer; stem, classifier and depthwise convolutions stay dense. With
    --model, the real weights of a pruned model follow.
    """
    rows = []
    for name, (side, bars, bf16, batched) in MODELS.items():
        for sparsity, bar in zip(SPARSITIES, bars, strict=True):
            print(f"  {name} at {sparsity} ...", file=sys.stderr, flush=True)
            model = random_masks(timm.create_model(name).eval(), sparsity)
            speed = _measure(model, side, 1)
            rows.append(_row(f"{name} {sparsity}", speed, 1, RIVALS[:2], bar))
            if bf16 and sparsity == 0.95:
                rows.append(_row(f"{name} {sparsity}, bf16", speed, 1, RIVALS[2:], 1))
            if batched:
                rows.append(
                    _row(f"{name} {sparsity}, batch 32", _measure(model, side, 32), 32, RIVALS[:2], bar * 2 / 3)
                )
        rows.append(_against_torch(name, side))
    if options.model:
        model = hf_cyclical.load(options.model)
        speed = _measure(model, _side(model), 1)
        rows.append(_row(f"{options.model.name}, its own zeros", speed, 1, RIVALS[:2], None))
        rows.append(_row(f"{options.model.name}, bf16", speed, 1, RIVALS[2:], None))
    return rows


def threads(_: argparse.Namespace) -> list[Row]:
    """Milliseconds of ResNet-50 with two threads and with one, by the clock; for a machine that does nothing else."""
    rows = []
    for sparsity in SPARSITIES:
        model = random_masks(timm.create_model("resnet50").eval(), sparsity)
        one, two = (hf_cyclical.compile(model, num_threads=n) for n in (1, THREADS))
        images = torch.randn(1, 3, 224, 224)
        turns = take_turns(*(_milliseconds(fast, images, time.perf_counter) for fast in (two, one)), 31)
        rows.append(_ratio(f"resnet50 {sparsity}, {THREADS} threads", turns, GAIN))
    return rows


def _side(model: nn.Module) -> int:
    """Of the images that a pruned model is for: as timm says it, or transformers; else CIFAR's."""
    config = getattr(model, "config", None)
    settings = getattr(config, "pretrained_cfg", None) or getattr(model, "pretrained_cfg", None)
    return settings["input_size"][-1] if settings else getattr(config, "image_size", None) or CIFAR


def _against_torch(name: str, side: int) -> Row:
    model = random_masks(timm.create_model(name).eval(), FEW_ZEROS)
    fast, images = hf_cyclical.compile(model, num_threads=1), torch.randn(1, 3, side, side)
    turns = take_turns(*(_milliseconds(run, images, time.process_time) for run in (fast, model)), 9)
    return _ratio(f"{name} {FEW_ZEROS}, dense torch", turns, AS_TORCH)


def _milliseconds(run: nn.Module, images: torch.Tensor, clock: Callable[[], float]) -> Callable[[], float]:
    @torch.inference_mode()
    def once() -> float:
        start = clock()
        run(images)
        return 1e3 * (clock() - start)

    return once


def _ratio(what: str, turns: list[tuple[float, float]], bar: float) -> Row:
    measured, baseline = (median(values) for values in zip(*turns, strict=True))
    return Row(what, "ms", measured, baseline, median(b / a for a, b in turns), (">=", bar))


def _measure(model: nn.Module, side: int, batch: int) -> Speed:
    rounds = 41 if side <= SMALL else 9 if batch == 1 else 3
    return measure_speed(model, (3, side, side), batches=(batch,), rounds=rounds)


def _row(what: str, speed: Speed, batch: int, rivals: tuple[str, ...], bar: float | None) -> Row:
    ours = speed.milliseconds(OURS, batch)
    known = [t for rival in rivals if (t := speed.milliseconds(rival, batch)) is not None]
    best = min(known, default=float("nan"))
    return Row(what, "ms", ours, best, best / ours, None if bar is None else (">=", round(bar, 2)))


@torch.no_grad()
def random_masks(model: nn.Module, sparsity: float) -> nn.Module:
    """Zeros at random in all convolutions and linear layers except the first, the last and the depthwise ones.

    BatchNorms get factors like those of a trained model: timm begins with some that are zero, and folding these would
    leave layers without any weights.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.uniform_(0.5, 1.5)
    params = prunable_parameters(model)
    names = list(params)
    chosen = {n: p for n, p in params.items() if n not in (names[0], names[-1]) and p.shape[1] > 1}
    random = {name: torch.rand_like(p) for name, p in chosen.items()}
    apply_masks_(chosen, magprune(random, sparsity))
    return model
