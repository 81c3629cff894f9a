import pytest
from torch import nn
from torch.nn.utils import parametrizations, prune

from hf_cyclical.core import PruningError, prunable_parameters


def names(model, **patterns):
    return list(prunable_parameters(model, **patterns))


class Net(nn.Module):
    """A stem, two stages and a head, under the names of a vision model."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.stage1 = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1))
        self.stage2 = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(2, 3),
        nn.Conv1d(2, 3, 1),
        nn.Conv2d(2, 3, 1),
        nn.Conv3d(2, 3, 1),
        nn.ConvTranspose1d(2, 3, 1),
        nn.ConvTranspose2d(2, 3, 1),
        nn.ConvTranspose3d(2, 3, 1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_weights_of_linear_maps_and_convolutions_are_pruned_and_biases_are_not(layer):
    params = prunable_parameters(nn.Sequential(layer))
    assert list(params) == ["0.weight"]
    assert params["0.weight"] is layer.weight


def test_norms_and_embeddings_stay_dense():
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.BatchNorm1d(4), nn.GroupNorm(2, 4), nn.Linear(4, 2))
    assert names(model) == ["4.weight"]


def test_the_order_is_that_of_the_model():
    assert names(Net()) == [
        "stem.weight",
        "stage1.0.weight",
        "stage1.2.weight",
        "stage2.0.weight",
        "stage2.1.weight",
        "head.weight",
    ]


def test_a_model_that_is_one_layer_is_pruned_under_the_name_of_its_parameter():
    assert names(nn.Linear(4, 2)) == ["weight"]


def test_names_are_those_of_the_models_parameters():
    model = Net()
    assert prunable_parameters(model).items() <= dict(model.named_parameters()).items()


# Weights that layers share -------------------------------------------------------------------------------------------


def tied():
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "second": nn.Linear(4, 4), "third": nn.Linear(4, 4)})
    model["third"].weight = model["first"].weight
    return model


def test_a_tied_weight_is_one_parameter_under_its_first_name():
    assert names(tied()) == ["first.weight", "second.weight"]


def test_a_layer_used_twice_is_one_parameter():
    layer = nn.Linear(4, 4)
    assert names(nn.Sequential(layer, nn.ReLU(), layer)) == ["0.weight"]


@pytest.mark.parametrize("name", ["first", "third"])
def test_a_tied_weight_stays_dense_if_any_of_its_names_is_excluded(name):
    assert names(tied(), exclude=[name]) == ["second.weight"]


@pytest.mark.parametrize("name", ["0", "2"])
def test_a_layer_used_twice_stays_dense_if_either_name_is_excluded(name):
    layer = nn.Linear(4, 4)
    assert names(nn.Sequential(layer, nn.Linear(4, 4), layer), exclude=[name]) == ["1.weight"]


def test_a_tied_weight_can_be_included_by_its_second_name():
    (weight,) = prunable_parameters(model := tied(), include=["third"]).values()
    assert weight is model["first"].weight


# Patterns ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (["stage1.*"], None, ["stage1.0.weight", "stage1.2.weight"]),
        (["head", "stem"], None, ["stem.weight", "head.weight"]),
        (["stage?.0"], None, ["stage1.0.weight", "stage2.0.weight"]),
        (["head.weight"], None, ["head.weight"]),
        (None, ["stage*", "stem"], ["head.weight"]),
        (["stage*"], ["stage2.*"], ["stage1.0.weight", "stage1.2.weight"]),
        ([], ["stage*", "head"], ["stem.weight"]),
    ],
)
def test_globs_on_layer_names_choose(include, exclude, expected):
    assert names(Net(), include=include, exclude=exclude) == expected


@pytest.mark.parametrize("field", ["include", "exclude"])
def test_a_pattern_that_matches_no_layer_is_an_error_with_near_names(field):
    with pytest.raises(PruningError) as error:
        prunable_parameters(Net(), **{field: ["stem", "stage1.7"]})
    message = str(error.value)
    assert message.startswith(f"{field} pattern 'stage1.7' matches no layer: near names are ")
    assert "stage1.0" in message
    assert "stage1.2" in message
    assert "\n" not in message


def test_a_pattern_near_nothing_lists_some_names_all_the_same():
    with pytest.raises(PruningError, match=r"'\?\?' matches no layer: near names are stem, stage1\.0, stage1\.2$"):
        prunable_parameters(Net(), include=["??"])


def test_a_pattern_does_not_match_layers_that_cannot_be_pruned():
    with pytest.raises(PruningError, match=r"exclude pattern 'stage1\.1' matches no layer"):
        prunable_parameters(Net(), exclude=["stage1.1"])


def test_patterns_are_case_sensitive():
    with pytest.raises(PruningError, match="include pattern 'Head' matches no layer: near names are head"):
        prunable_parameters(Net(), include=["Head"])


# What cannot be pruned -----------------------------------------------------------------------------------------------


def test_frozen_weights_are_skipped():
    model = Net()
    model.stage1.requires_grad_(False)
    model.head.weight.requires_grad_(False)
    assert names(model) == ["stem.weight", "stage2.0.weight", "stage2.1.weight"]


def test_a_model_without_layers_is_refused():
    with pytest.raises(PruningError, match="nothing to prune: 0 linear and convolution layers"):
        prunable_parameters(nn.Sequential(nn.ReLU(), nn.LayerNorm(3)))


def test_patterns_that_leave_nothing_are_refused():
    with pytest.raises(PruningError, match=r"nothing to prune: 6 .* 0 left by include=\['head'\] and exclude=\['h"):
        prunable_parameters(Net(), include=["head"], exclude=["h*"])


def test_a_frozen_model_is_refused():
    with pytest.raises(PruningError, match=r"nothing to prune: 6 .* none of them with trainable weights"):
        prunable_parameters(Net().requires_grad_(False))


@pytest.mark.parametrize(
    "change",
    [parametrizations.weight_norm, parametrizations.orthogonal, lambda m: prune.l1_unstructured(m, "weight", 0.5)],
    ids=["weight_norm", "orthogonal", "torch_prune"],
)
def test_a_weight_that_is_not_a_plain_parameter_is_refused_unless_excluded(change):
    model = nn.ModuleDict({"plain": nn.Linear(4, 4), "other": nn.Linear(4, 4)})
    change(model["other"])
    with pytest.raises(PruningError, match=r"^the weight of other is not a plain parameter .* exclude the layer$"):
        prunable_parameters(model)
    assert names(model, exclude=["other"]) == ["plain.weight"]
