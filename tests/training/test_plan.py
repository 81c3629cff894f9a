"""The plan and the report say how far a layer may fall, and which have."""

import dataclasses

import pytest
import torch

from hf_cyclical import PruningError
from hf_cyclical.models import load_image_model
from hf_cyclical.reports import LayerReport, PruningReport
from hf_cyclical.training import describe_plan

# TinyNet: 36, 1536 and 72 weights, of which 4, 154 and 7 stay at 0.9 in local scope, and 164 in another.


def plan(make_trainer, **pruning):
    return describe_plan(make_trainer({"target_sparsity": 0.9, "cycles": 2, "delta_t": 1} | pruning, max_steps=8))


def kept_column(text):
    lines = [line.split() for line in text.splitlines() if line.lstrip().startswith(("conv.", "hidden.", "head."))]
    return {words[0]: " ".join(words[3:]) for words in lines}


def test_local_scope_names_the_layers_that_keep_few_weights(make_trainer):
    assert kept_column(plan(make_trainer, row_floor=0)) == {
        "conv.weight": "4",
        "hidden.weight": "154",
        "head.weight": "7",
    }
    text = plan(make_trainer)  # 164 of all 1,644: 4 (its filters), then 160 shared by 1,536 and 72
    assert kept_column(text) == {"conv.weight": "4", "hidden.weight": "153", "head.weight": "7"}
    assert "Few weights are left in conv.weight 4, head.weight 7: exclude such layers" in text
    assert "Few weights" not in plan(make_trainer, include=["hidden"])


def test_global_scope_shows_the_floor_of_every_layer(make_trainer):
    text = plan(make_trainer, scope="global", layer_floor=0.5, row_floor=0)
    assert kept_column(text) == {
        "conv.weight": "by rank, 27 or more",
        "hidden.weight": "by rank, 27 or more",
        "head.weight": "by rank, 27 or more",
    }
    assert "Every layer keeps at least 0.5 of an equal share of the weights that stay (layer_floor)." in text


def test_global_scope_names_the_layers_that_come_near_their_floor(make_trainer):
    trainer = make_trainer(
        {"target_sparsity": 0.9, "cycles": 2, "delta_t": 1, "scope": "global", "row_floor": 0}, max_steps=8
    )
    with torch.no_grad():
        for name, p in trainer.prunable_parameters().items():
            p.uniform_(1, 2) if name == "hidden.weight" else p.uniform_(0.1, 0.2)
    assert "some would keep little more: conv.weight 27, head.weight 27; scope lamp avoids that." in describe_plan(
        trainer
    )
    with torch.no_grad():
        for p in trainer.prunable_parameters().values():  # the 36 largest of conv, 64 of hidden and of head
            p.zero_().view(-1)[:64].fill_(1)
    assert "some would keep" not in describe_plan(trainer)


def test_without_a_floor_the_plan_warns(make_trainer):
    text = plan(make_trainer, scope="global", layer_floor=0, row_floor=0)
    assert "Every layer keeps one weight at least, and maybe no more (layer_floor)." in text


def test_lamp_scope_keeps_one_weight_or_more(make_trainer):
    text = plan(make_trainer, scope="lamp", row_floor=0)
    assert set(kept_column(text).values()) == {"by rank, 1 or more"}
    assert "layer_floor" not in text


def test_every_filter_and_output_keeps_a_weight_by_rank(make_trainer):
    assert kept_column(plan(make_trainer, scope="lamp")) == {
        "conv.weight": "by rank, 4 or more",
        "hidden.weight": "by rank, 24 or more",
        "head.weight": "by rank, 3 or more",
    }


class TestFewerWeightsThanRows:
    """ResNet-8 with 10 classes: at 0.99 its first convolution keeps 4 weights for 16 filters, the classifier 6."""

    def plan(self, make_trainer, **pruning):
        model = load_image_model("cifar_resnet8", [str(i) for i in range(10)], image_size=8).model
        return describe_plan(make_trainer({"target_sparsity": 0.99, "cycles": 2} | pruning, model=model, max_steps=8))

    def test_the_plan_says_how_many_classes_can_be_told_apart(self, make_trainer):
        text = self.plan(make_trainer, row_floor=0)
        few = "fewer weights than filters or outputs: timm_model.conv1.weight 4 for 16, timm_model.fc.weight 6 for 10."
        assert few in text
        assert "timm_model.fc.weight is the classifier: at most 7 of 10 classes can be told apart." in text
        assert "row_floor 1 keeps a weight of each." in text

    def test_or_that_the_floor_keeps_them(self, make_trainer):
        text = self.plan(make_trainer)
        assert "timm_model.conv1.weight 4 for 16, timm_model.fc.weight 6 for 10." in text
        assert "They keep 1 of each instead (row_floor), and the other layers make up for it." in text
        assert "told apart" not in text

    def test_or_nothing_where_there_are_enough(self, make_trainer):
        assert "fewer weights than" not in self.plan(make_trainer, target_sparsity=0.9)

    def test_a_target_below_the_floor_is_refused(self, make_trainer):
        with pytest.raises(
            PruningError, match=r"^sparsity 0.999 leaves .* weights, and row_floor 1 keeps .*row_floor 0$"
        ):
            self.plan(make_trainer, target_sparsity=0.999)


def report(kept, **config):
    layers = [LayerReport(f"layer{i}", [1000], 1000, n, 0) for i, n in enumerate(kept)]
    return PruningReport({"method": "cyclical"} | config, 10, 0, 1000 * len(kept), layers=layers)


@pytest.mark.parametrize(
    ("config", "near"),
    [
        # 300 of 3000 stay, an equal share of which is 100.
        ({"scope": "global", "layer_floor": 0.2}, ["layer0", "layer1"]),
        ({"scope": "global", "layer_floor": 0.1}, []),
        ({"scope": "global", "layer_floor": 0.0}, []),
        ({"scope": "lamp", "layer_floor": None}, []),
        ({"scope": "local", "layer_floor": None}, []),
    ],
)
def test_the_report_names_the_layers_near_their_floor(config, near):
    made = report([20, 30, 250], **config)
    assert [layer.name for layer in made.near_floor] == near
    text = made.summary()
    assert ("Layers near the fewest weights they may keep" in text) == bool(near)
    if near:
        assert ": layer0 20 of 1,000, layer1 30 of 1,000: if the accuracy suffers, use scope lamp" in text


def test_a_layer_with_a_single_weight_is_near_the_floor_of_any_rank_over_all():
    for config in ({"scope": "global", "layer_floor": 0.0}, {"scope": "lamp", "layer_floor": None}, {"scope": "lamp"}):
        assert [layer.name for layer in report([1, 299, 2], **config).near_floor] == ["layer0"]


def test_what_cannot_be_pruned_is_not_near_its_floor():
    made = report([1, 299], scope="lamp")
    made.layers[0] = dataclasses.replace(made.layers[0], shape=[1], weights=1)
    assert made.near_floor == []


@pytest.mark.parametrize(("counts", "share"), [((1, 2), 0.25), ((0, 0), 0.0), ((1, None), None)])
def test_the_report_tells_how_many_filters_are_empty(counts, share):
    layers = [
        LayerReport("a", [4, 2, 5], 40, 20, 0, counts[0]),
        LayerReport("b", [8, 2, 5], 80, 40, 0, counts[1]),
        LayerReport("linear", [10, 10], 100, 20, 0, 8),
    ]
    made = PruningReport({"method": "cyclical"}, 10, 0, 220, layers=layers)
    assert made.empty == share
    assert ("25.00 % of the convolutions' filters have no weight left." in made.summary()) == bool(share)
