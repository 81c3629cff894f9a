"""The paper's settings by name, against expectations written by hand from the paper."""

import dataclasses

import pytest

from hf_cyclical.cli import parse_arguments
from hf_cyclical.cli.arguments import TYPES
from hf_cyclical.paper import PRESETS

KNOWN = {field.name for kind in TYPES for field in dataclasses.fields(kind)}


def parse(*argv):
    return parse_arguments([str(a) for a in argv], description="")


def test_all_of_the_papers_experiments_are_there():
    cifar = {f"{d}-{m}" for d in ("cifar10", "cifar100") for m in ("resnet20", "resnet56", "vgg14", "mobilenet")}
    imagenet = {f"imagenet-{m}" for m in ("resnet18", "resnet50", "efficientnet", "mobilenetv2", "resnet50-published")}
    assert set(PRESETS) == {"digits"} | cifar | imagenet


@pytest.mark.parametrize("name", PRESETS)
def test_every_value_is_known_and_has_a_source(name):
    preset = PRESETS[name]
    assert set(preset.settings) <= KNOWN
    sourced = {key for keys in [*preset.paper, *preset.ours] for key in keys.split(", ")}
    named_by_the_preset = {"model_name_or_path", "dataset_name"}
    assert set(preset.settings) - sourced <= named_by_the_preset
    assert sourced <= set(preset.settings)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
@pytest.mark.parametrize("model", ["resnet20", "resnet56", "vgg14", "mobilenet"])
def test_cifar(dataset, model):
    args = parse("--preset", f"{dataset}-{model}")
    assert args.model.model_name_or_path == f"cifar_{model}"
    assert args.data.dataset_name == f"uoft-cs/{dataset}"
    assert args.data.augment == "cifar"
    training, pruning = args.training, args.pruning
    assert (training.optim, training.optim_args) == ("sgd", "momentum=0.9")
    assert training.learning_rate == 0.01
    assert training.per_device_train_batch_size == 256
    assert training.max_grad_norm == 0
    assert (pruning.method, pruning.cycles, pruning.delta_t) == ("cyclical", 5, 100)
    assert training.num_train_epochs - pruning.dense_epochs == 100  # 5 cycles of 20
    # 1e-2 drops to 1e-3 after 75 % of a cycle: of 20 epochs with 10 updates each, at update 150.
    eta = dataclasses.replace(pruning, dense_epochs=0).recipe(1000).eta
    assert (eta(149), eta(150), eta(200)) == pytest.approx((1.0, 0.1, 1.0))


@pytest.mark.parametrize("model", ["resnet18", "resnet50", "efficientnet", "mobilenetv2"])
def test_imagenet(model):
    args = parse("--preset", f"imagenet-{model}")
    assert args.data.dataset_name == "ILSVRC/imagenet-1k"
    training, pruning = args.training, args.pruning
    assert (training.optim, training.weight_decay, training.optim_args) == ("adamw_torch", 0, None)  # Adam
    assert training.learning_rate == 1e-4
    assert training.per_device_train_batch_size == 64
    assert training.num_train_epochs == 60
    assert (pruning.cycles, pruning.delta_t, pruning.dense_epochs) == (3, 100, 0)
    eta = pruning.recipe(600).eta  # 3 cycles of 200 updates, the drop at the halfway mark
    assert (eta(99), eta(100), eta(200)) == pytest.approx((1.0, 0.1, 1.0))


def test_the_comparison_with_published_results():
    args = parse("--preset", "imagenet-resnet50-published")
    assert (args.training.optim, args.training.optim_args, args.training.learning_rate) == ("sgd", "momentum=0.9", 0.01)
    assert (args.pruning.cycles, args.training.num_train_epochs) == (2, 40)
    assert args.pruning.target_sparsity == 0.826


def test_the_main_job_has_the_papers_method_cycles_and_optimizer():
    args = parse()
    assert (args.model.model_name_or_path, args.data.dataset_name) == ("cifar_resnet8", "digits")
    assert (args.pruning.method, args.pruning.target_sparsity, args.pruning.cycles) == ("cyclical", 0.98, 5)
    training = args.training
    assert (training.optim, training.optim_args) == ("sgd", "momentum=0.9")
    assert (training.num_train_epochs - args.pruning.dense_epochs) * 15 == 10_005  # 898 images in batches of 60


def test_another_optimizer_has_not_the_arguments_of_the_presets():
    assert parse("--optim", "sgd").training.optim_args == "momentum=0.9"
    assert parse("--optim", "adamw_torch").training.optim_args is None


def test_an_explicit_argument_overrides():
    args = parse("--preset", "imagenet-resnet50", "--cycles", 2, "--learning_rate", 1e-3, "--num_train_epochs", 7)
    assert (args.pruning.cycles, args.training.learning_rate, args.training.num_train_epochs) == (2, 1e-3, 7)
    assert args.training.per_device_train_batch_size == 64


def test_an_explicit_value_equal_to_the_parsers_default_overrides_too():
    assert (
        parse("--preset", "cifar10-resnet20", "--lr_drop_factor", 0.1, "--weight_decay", 0).training.weight_decay == 0
    )


def test_a_preset_fits_every_method():
    for method in ("one_shot", "gradual", "gradual_recovery", "cyclical_lr", "iterative", "pgd"):
        args = parse("--preset", "cifar10-resnet20", "--method", method)
        assert args.training.num_train_epochs - args.pruning.dense_epochs == 100
        assert args.pruning.recipe(2600, 260).s_t == 0.98


@pytest.mark.parametrize(
    ("method", "name", "own"),
    [("dpf", "delta_t", 16), ("snfs", "delta_t", None), ("acdc", "cycles", 8), ("freeze", "cycles", 1)],
)
@pytest.mark.parametrize("preset", ["digits", "cifar10-resnet20"])
def test_what_a_method_has_of_its_own_is_not_the_presets(preset, method, name, own):
    words = ("--preset", preset, "--method", method)
    assert parse(*words).pruning.resolved(name) == own
    if name == "delta_t" or method == "acdc":
        assert parse(*words, f"--{name}", 30).pruning.resolved(name) == 30


def test_a_named_model_is_not_trained_densely_first():
    args = parse("--preset", "cifar10-resnet20", "--model_name_or_path", "trained")
    assert args.pruning.dense_epochs == 0
    assert args.training.num_train_epochs == 100
    scratch = parse("--preset", "cifar10-resnet20", "--model_name_or_path", "cifar_resnet56", "--from_scratch")
    assert scratch.pruning.dense_epochs == 160


def test_list_prints_a_row_for_each(capsys):
    with pytest.raises(SystemExit) as exit_:
        parse("--preset", "list")
    assert exit_.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(PRESETS)
    row = next(line for line in lines if line.startswith("cifar10-resnet20"))
    assert row.split()[1:] == [
        "cifar_resnet20",
        "uoft-cs/cifar10",
        "0.98",
        "5",
        "100",
        "100",
        "sgd",
        "0.01",
        "0.75",
        "256",
    ]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--preset", "cifar10-resnet21"], "did you mean cifar10-resnet20?"),
        (["--pruning_epochs", "10", "--num_train_epochs", "20"], "pruning_epochs 10 contradicts num_train_epochs 20"),
        (["--pruning_epochs", "0"], "pruning_epochs 0 must be above 0"),
    ],
)
def test_refusals(argv, words, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(*argv)
    assert exit_.value.code == 2
    assert words in capsys.readouterr().err


def test_a_drop_that_is_named_takes_the_place_of_the_presets_shape():
    assert parse("--preset", "digits").pruning.lr_shape == "cosine"
    assert parse("--preset", "digits", "--lr_drop_at", 0.5).pruning.resolved("lr_shape") == "drop"
