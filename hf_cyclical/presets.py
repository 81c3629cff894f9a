"""Settings by name. An argument that the user gives overrides the preset's."""

from typing import Any

# The embedded default: the paper's CIFAR budget (5 cycles of 20 epochs, the learning rate dropped by 10 after 75 % of
# each, masks chosen a few times an epoch) on data that needs no download. The rest is our choice: digits are so easy
# that at the paper's 1e-2 the gradients vanish, and no weight that returned grows enough to stay.
DIGITS: dict[str, Any] = {
    "model_name_or_path": "cifar_resnet8",
    "dataset_name": "digits",
    "target_sparsity": 0.95,
    "cycles": 5,
    "delta_t": 10,
    "dense_epochs": 20,
    "num_train_epochs": 120,
    "learning_rate": 5e-2,
    "per_device_train_batch_size": 32,
    "weight_decay": 5e-4,
}
PRESETS = {"digits": DIGITS}
