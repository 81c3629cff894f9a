"""Accuracies in percent that the paper reports, as in its tables: mean, and standard deviation where it has one.

By table, then by row and column as the experiments of `experiments.py` name them.
"""

Numbers = dict[str, list[str]]


def _rows(one_shot: str, gradual: str, cyclical: str) -> Numbers:
    """A model's columns of Tables 2, 3, 6 and 7, from the lowest sparsity to the highest."""
    columns = {"one_shot": one_shot, "gradual": gradual, "cyclical": cyclical}
    return {method: _split(numbers) for method, numbers in columns.items()}


def _split(numbers: str) -> list[str]:
    return [number.replace("+", " ± ") for number in numbers.split()]


ACCURACY: dict[str, Numbers] = {
    "cifar10-resnet20": _rows(
        "90.10+0.2 86.52+0.9 78.55+0.2 33.43+0.0",
        "90.78+0.4 89.14+0.2 83.44+0.1 50.77+2.7",
        "90.90+0.1 89.29+0.2 85.79+0.1 66.04+2.4",
    ),
    "cifar10-resnet56": _rows(
        "92.35+0.1 90.85+0.0 79.22+0.0 58.03+0.3",
        "92.44+0.0 91.69+0.1 89.57+0.1 68.20+0.1",
        "92.41+0.1 91.90+0.2 90.54+0.0 70.99+0.3",
    ),
    "cifar10-vgg14": _rows(
        "92.98+0.1 92.17+0.1 89.29+0.1 85.75+0.0",
        "93.25+0.1 92.36+0.2 90.64+0.3 88.59+0.0",
        "93.03+0.1 92.47+0.0 91.71+0.1 89.59+0.7",
    ),
    "cifar10-mobilenet": _rows(
        "90.22+0.2 88.44+0.0 84.99+0.3 75.05+1.0",
        "90.25+0.0 89.49+0.2 85.51+0.7 73.42+0.0",
        "89.83+0.1 89.37+0.0 86.99+0.3 79.07+0.6",
    ),
    "cifar100-resnet20": _rows(
        "70.57+0.0 67.28+0.1 57.29+0.1 43.23+0.0",
        "71.20+0.0 69.32+0.0 62.56+0.0 48.68+2.1",
        "71.44+0.2 70.53+0.1 66.81+0.0 60.63+0.2",
    ),
    "cifar100-resnet56": _rows(
        "74.48+0.1 72.03+0.1 68.48+0.0 46.73+2.7",
        "75.19+0.2 73.41+0.4 70.62+0.3 56.62+1.9",
        "74.97+0.0 73.86+0.1 72.46+0.0 56.79+0.0",
    ),
    "cifar100-vgg14": _rows(
        "72.36+0.1 70.09+0.2 64.52+0.1 49.27+0.0",
        "72.49+0.2 71.06+0.0 67.60+0.0 59.47+0.0",
        "72.22+0.1 71.54+0.4 67.61+0.0 64.76+0.0",
    ),
    "cifar100-mobilenet": _rows(
        "64.87+0.0 64.04+0.1 60.72+0.0 49.59+0.2",
        "64.91+0.5 64.37+0.2 58.48+0.8 40.25+0.3",
        "64.43+0.1 63.91+0.2 62.08+0.4 55.03+1.0",
    ),
    "imagenet-resnet18": _rows("69.9 69.2 68.2 63.5", "69.9 69.2 67.8 63.6", "69.6 69.4 68.3 64.9"),
    "imagenet-resnet50": _rows("75.9 75.9 75.4 72.8 67.1", "76.1 75.8 74.9 71.9 64.7", "75.8 75.7 75.3 73.3 68.7"),
    "imagenet-efficientnet": _rows("73.9 73.2 71.2 68.0 65.1", "74.0 73.2 71.8 68.2 65.2", "74.1 73.4 72.4 69.9 67.5"),
    "imagenet-mobilenetv2": _rows("70.8 67.6 66.7 61.3", "70.9 69.8 67.6 62.7", "69.8 70.1 68.4 64.4"),
    "imagenet-resnet50-published": {
        "1 cycle": _split("75.46 74.65"),
        "2 cycles": _split("75.84 75.29"),
        "3 cycles": _split("76.00 75.40"),
    },
    "imagenet-resnet50-scratch": {
        "1 cycle": _split("74.61 73.75"),
        "2 cycles": _split("74.88 74.25"),
        "3 cycles": _split("74.81 74.38"),
    },
}
ACCURACY["cifar10-resnet20-recovery"] = {
    "gradual": ACCURACY["cifar10-resnet20"]["gradual"],
    "cyclical": ACCURACY["cifar10-resnet20"]["cyclical"],
    "gradual_recovery": _split("90.66+0.0 88.74+0.2 83.36+0.8 56.94+2.5"),
}

# Of the ablations: accuracy at the end of each cycle.
ACCURACY_BY_CYCLE: dict[str, Numbers] = {
    "cifar10-resnet20-schedules": {
        "cubic": _split("62.74+0.2 65.89+0.6 66.89+0.7 67.23+0.6 67.56+0.7"),
        "linear": _split("47.63+1.2 52.035+0.9 56.33+0.9 57.65+1.2 58.27+1.2"),
        "step": _split("39.88+0.5 47.47+0.4 50.94+0.4 53.64+0.2 55.36+0.6"),
        "cyclical_lr": _split("63.01+0.0 63.73+0.1 64.11+0.2 63.8+0.2 64.06+0.2"),
    },
    "cifar10-resnet20-init": {
        "s_init 0": _split("81.64+0.2 83.85+0.1 84.64+0.4 85.51+0.1 85.76+0.0"),
        "s_init 0.25": _split("81.41+0.2 83.99+0.1 84.58+0.0 85.76+0.1 85.90+0.4"),
        "s_init 0.5": _split("81.04+0.2 83.92+0.1 84.81+0.1 85.24+0.1 85.58+0.1"),
        "s_init 0.75": _split("81.42+0.1 84.01+0.3 84.77+0.3 85.39+0.1 85.69+0.2"),
    },
}

# Of the schedule ablation: Jaccard distance between the masks at the end of each cycle and those of the first.
MASK_DISTANCE: dict[str, Numbers] = {
    "cifar10-resnet20-schedules": {
        "cubic": _split("0 0.38 0.49 0.55 0.58"),
        "linear": _split("0 0.48 0.58 0.62 0.64"),
        "step": _split("0 0.46 0.59 0.65 0.68"),
        "cyclical_lr": _split("0 0 0 0 0"),
    },
}

# Of section 4, by samples and choice of alpha: how often one-shot and PGD find the zero.
# Table 1, for d = 5 and 100 runs.
LINEAR_RECOVERY: dict[tuple[int, str], tuple[float, float]] = {
    (2, "random"): (0.33, 0.32),
    (2, "adversarial"): (0.12, 0.11),
    (4, "random"): (0.22, 0.36),
    (4, "adversarial"): (0.02, 0.23),
    (10, "random"): (0.35, 0.64),
    (10, "adversarial"): (0.04, 0.44),
}

# Table 4, ResNet-50 on ImageNet, as printed: method, pruning ratio, dense baseline, pruned, difference.
TABLE_4: tuple[tuple[str, str, str, str, str], ...] = (
    ("SNFS (100 epochs)", "72.4 %", "75.95", "74.59", "-1.36"),
    ("DPF (90 epochs)", "73.5 %", "75.95", "75.48", "-0.47"),
    ("Cyclical Pruning (110 epochs, Ours)", "73.5 %", "76.16", "75.46", "-0.7"),
    ("Cyclical Pruning (130 epochs, Ours)", "73.5 %", "76.16", "75.84", "-0.32"),
    ("Cyclical Pruning (150 epochs, Ours)", "73.5 %", "76.16", "76.00", "-0.15"),
    ("SNFS (100 epochs)", "82.0 %", "75.95", "72.65", "-3.30"),
    ("RigL (100 epochs)", "80.0 %", "76.80", "74.60", "-2.2"),
    ("RigL (500 epochs)", "80.0 %", "76.80", "76.60", "-0.2"),
    ("DPF (90 epochs)", "82.6 %", "75.95", "74.55", "-1.44"),
    ("Gradual Pruning (100 epochs)", "80.0 %", "76.69", "75.58", "-1.11"),
    ("Cyclical Pruning (110 epochs, Ours)", "82.6 %", "76.16", "74.65", "-1.51"),
    ("Cyclical Pruning (130 epochs, Ours)", "82.6 %", "76.16", "75.29", "-0.87"),
    ("Cyclical Pruning (150 epochs, Ours)", "82.6 %", "76.16", "75.40", "-0.75"),
)
