"""The plan says what each layer keeps, and the report which filters have nothing left."""

import re

import pytest
import torch
from support.tiny import CYCLICAL
from torch import nn
from transformers import PreTrainedConfig

from hf_cyclical import PruningError, prunable_parameters
from hf_cyclical.models import load_image_model
from hf_cyclical.reports import LayerReport, PruningReport, classifier
from hf_cyclical.training import describe_plan

# TinyNet: 36, 1536 and 72 weights, of which 4, 154 and 7 stay at 0.9 by a uniform share, and 164 by another.


def plan(make_trainer, **pruning):
    return describe_plan(make_trainer({"target_sparsity": 0.9, "cycles": 2, "delta_t": 1} | pruning, max_steps=8))


def kept_column(text):
    lines = [line.split() for line in text.splitlines() if line.lstrip().startswith(("conv.", "hidden.", "head."))]
    return {words[0]: " ".join(words[3:]) for words in lines}


def test_a_uniform_share_names_the_layers_that_keep_few_weights(make_trainer):
    assert kept_column(plan(make_trainer, row_floor=0)) == {
        "conv.weight": "4",
        "hidden.weight": "154",
        "head.weight": "7",
    }
    text = plan(make_trainer)  # 164 of all 1,644: 4 (its filters), then 160 shared by 1,536 and 72
    assert kept_column(text) == {"conv.weight": "4", "hidden.weight": "153", "head.weight": "7"}
    assert "Few weights are left in conv.weight 4, head.weight 7: exclude such layers" in text
    assert "Few weights" not in plan(make_trainer, include=["hidden"])


@pytest.mark.parametrize("share", ["global", "lamp"])
def test_a_share_by_rank_keeps_one_weight_or_more(make_trainer, share):
    text = plan(make_trainer, share=share, row_floor=0)
    assert set(kept_column(text).values()) == {"by rank, 1 or more"}
    assert "Few weights" not in text


def test_every_filter_and_output_keeps_a_weight_by_rank(make_trainer):
    assert kept_column(plan(make_trainer, share="lamp")) == {
        "conv.weight": "by rank, 4 or more",
        "hidden.weight": "by rank, 24 or more",
        "head.weight": "by rank, 3 or more",
    }


@pytest.mark.parametrize(
    ("delta_t", "times"),
    [(1, None), (4, None), (6, 4), (8, 3), (1000, 2)],  # of a ramp of 16 updates: at 0, every delta_t, and at its end
)
def test_few_choices_of_masks_are_told_with_what_to_change(make_trainer, delta_t, times):
    text = describe_plan(make_trainer({"target_sparsity": 0.9, "cycles": 2, "delta_t": delta_t}, max_steps=40))
    warning = f"That is {times} times a cycle: a smaller delta_t would let the sparsity rise more gradually."
    assert (warning in text) == (times is not None)
    assert ("delta_t" in text) == (times is not None)


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

    def test_another_layer_with_a_row_for_every_class_is_not_taken_for_it(self, make_trainer):
        """16 classes and 16 filters, and the classifier itself stays dense."""
        model = load_image_model("cifar_resnet8", [str(i) for i in range(16)], image_size=8).model
        pruning = {"target_sparsity": 0.995, "cycles": 2, "row_floor": 0, "exclude": ["*.fc"]}
        trainer = make_trainer(pruning, model=model, max_steps=8)
        text = describe_plan(trainer)
        assert "timm_model.layer1.0.conv2.weight 12 for 16" in text
        assert "is the classifier" not in text
        assert classifier(model, trainer.prunable_parameters()) is None
        assert classifier(model, prunable_parameters(model)) == "timm_model.fc.weight"

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


class TestFewerWeightsThanRowsByRank:
    """Of 24 + 24 weights, 12 stay at 0.75. All of body's are larger than those of head, except two, the largest."""

    FEW = "As the weights are now, the target leaves some layers fewer weights than filters or outputs: head.weight 2 "
    CLASSES = "head.weight is the classifier: as the weights are now, at most 3 of 4 classes can be told apart."

    def plan(self, make_trainer, head=(3.0, 2.0), **pruning):
        """The largest of head's weights; the others are 0.01, and body's 1.01, 1.02, ..., 1.24."""
        model = nn.Module()
        model.body, model.head = nn.Linear(4, 6), nn.Linear(6, 4)
        model.config = PreTrainedConfig(num_labels=4)
        small = [0.01] * (24 - len(head))
        nn.init.ones_(model.body.weight).data += torch.arange(1, 25).view(6, 4) / 100
        model.head.weight.data = torch.tensor([*head, *small]).view(4, 6)
        settings = {"target_sparsity": 0.75, "delta_t": 1, "row_floor": 0, "share": "global"} | pruning
        return describe_plan(make_trainer(settings, model=model, max_steps=20))

    # By LAMP too: the two of head have 1 and 4/13, all others there below 0.0001, and the tenth of body has about 1/11.
    @pytest.mark.parametrize("pruning", [{"share": "global"}, {"share": "lamp"}, {"method": "granet", "share": None}])
    def test_the_plan_tells_what_the_weights_as_they_are_would_keep(self, make_trainer, pruning):
        text = self.plan(make_trainer, **pruning)
        assert f"{self.FEW}for 4.\n  {self.CLASSES}\n  row_floor 1 keeps a weight of each.\n" in text
        assert text.count("  by rank, 1 or more") == 2
        assert "as the weights are now" not in self.plan(make_trainer, head=(3, 2, 3, 2), **pruning).lower()

    def test_or_nothing_where_every_row_keeps_a_weight(self, make_trainer):
        text = self.plan(make_trainer, row_floor=1)
        assert "fewer weights than" not in text
        assert "told apart" not in text

    def test_a_target_of_its_own_is_known_whatever_the_weights_are(self, make_trainer):
        text = self.plan(make_trainer, layer_sparsity=["head=0.92"])  # of 24, 22 go; body keeps 6 for 6
        assert "  The target leaves some layers fewer weights than filters or outputs: head.weight 2 for 4." in text
        assert "is the classifier: at most 3 of 4 classes can be told apart." in text
        body = self.plan(make_trainer, target_sparsity=0.8, layer_sparsity=["head=0.92"])  # body keeps 5 for 6
        assert "  As the weights are now, the target leaves some layers fewer" in body
        assert "is the classifier: at most 3 of 4 classes can be told apart." in body

    @pytest.mark.parametrize("pruning", [{"method": "rigl", "init_masks": "random"}, {"method": "snfs"}])
    def test_nothing_is_told_where_these_weights_do_not_decide(self, make_trainer, pruning):
        """Random first masks follow from the seed, and sparse momentum moves weights between the layers."""
        assert "fewer weights than" not in self.plan(make_trainer, **pruning)


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


def test_warm_up_and_tail_are_told(make_trainer):
    text = describe_plan(make_trainer({"cycles": 3, "delta_t": 8, "lr_warmup": 0.1, "tail": 0.16}, max_steps=100))
    assert "Warm-up: the learning rate rises to its start in the first 0.1 of each cycle." in text
    assert "Tail: the masks stay as they are from update 84 to the end." in text
    assert not {"Warm-up", "Tail"} & set(plan(make_trainer).replace(":", " ").split())


@pytest.mark.parametrize(
    ("pruning", "rates"),
    [
        # Four updates of warm-up, then 36 of a cosine from 0.05: its last value is 0.05 * (1 + cos(35/36 pi)) / 2.
        ({"lr_shape": "cosine", "lr_warmup": 0.1}, "0.01, up to 0.05, to 9.5e-05"),
        ({"lr_shape": "constant", "lr_warmup": 0.15}, "0.0071, up to 0.05"),  # 0.05 / 7
        ({"lr_shape": "linear"}, "0.05 to 0.0013"),  # 0.05 / 40 = 0.00125
    ],
)
def test_learning_rates_are_told_with_the_highest(make_trainer, pruning, rates):
    config = {"target_sparsity": 0.9, "cycles": 1, "delta_t": 5} | pruning
    text = describe_plan(make_trainer(config, max_steps=40, learning_rate=0.05))
    row = next(line for line in text.splitlines() if line.strip().startswith("cycle 1  "))
    assert row.endswith(f"  {rates}")


@pytest.mark.parametrize("share", ["uniform", "erk"])
def test_targets_of_their_own_change_the_sparsity_over_all_layers(make_trainer, share):
    pruning = CYCLICAL | {"share": share, "layer_sparsity": ["hidden=0.5"]}
    trainer = make_trainer(pruning, max_steps=24)
    (told,) = re.findall(r"with layer_sparsity ([\d.]+) over all layers", describe_plan(trainer))
    trainer.train()
    assert float(told) == pytest.approx(trainer.report.sparsity, abs=1e-4)
