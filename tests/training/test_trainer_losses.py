"""CyclicalPruningTrainer with other losses and clipped gradients, against Algorithm 1 as a naive loop."""

import copy

import pytest
import torch
from reference import Cyclical, model_loss, tv_pgd
from support.tiny import CYCLICAL, OrderedPruningTrainer, TinyImages, TinyNet
from support.tiny_models import save_family
from torch.nn.functional import cross_entropy, log_softmax, one_hot
from torch.utils.data import default_collate
from transformers import PreTrainedConfig, TimmWrapperConfig, TimmWrapperForImageClassification, TrainerCallback

from hf_cyclical import PruningConfig

T = 24
NAMES = ["conv.weight", "hidden.weight", "head.weight"]
DEFAULTS = {"row_floor": 1, "mask_momentum": True}  # those of PruningConfig
METHOD = Cyclical(s_t=0.9, T=T, k=2, delta_t=3)  # what CYCLICAL is in a run of T updates


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def batches_of_8(n):
    """The first n batches that a trainer in order sees, as lists to fill and to collate."""
    data = TinyImages()
    return [[data[j % len(data)] for j in range(8 * i, 8 * i + 8)] for i in range(n)]


def assert_equals_the_reference(trainer, accumulation=1, make_optimizer=sgd, loss=model_loss, collate=default_collate):
    model = TinyNet()
    micro = [(b["pixel_values"], b["labels"]) for b in map(collate, batches_of_8(T * accumulation))]
    updates = [micro[i : i + accumulation] for i in range(0, len(micro), accumulation)]
    run = tv_pgd(model, updates, make_optimizer, METHOD, names=NAMES, loss=loss, **DEFAULTS)
    for name, mask in run.masks.items():
        assert torch.equal(trainer.pruner.masks[name], mask), name
    for name, value in run.weights.items():
        torch.testing.assert_close(trainer.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


class TestGradients:
    def test_clipping_is_that_of_the_dense_gradient(self, make_trainer):
        class ClippingSGD(torch.optim.SGD):
            def step(self):
                norms.append(torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.2).item())
                super().step()

        norms = []
        trainer = make_trainer(CYCLICAL, max_steps=T, max_grad_norm=0.2, logging_strategy="steps", logging_steps=1)
        trainer.train()
        assert_equals_the_reference(trainer, make_optimizer=lambda p: ClippingSGD(p, lr=0.1, momentum=0.9))
        logged = [e["grad_norm"] for e in trainer.state.log_history if "grad_norm" in e]
        assert logged == pytest.approx(norms, rel=1e-3)
        assert sum(norm > 0.2 for norm in norms) > T // 2  # else clipping did nothing here


class TestLosses:
    @pytest.mark.parametrize("accumulation", [1, 2])
    def test_label_smoothing(self, make_trainer, accumulation):
        def smooth(model, pixels, labels):
            return cross_entropy(model(pixels)["logits"], labels, label_smoothing=0.1)

        model = TinyNet()
        model.config = PreTrainedConfig()  # the Trainer asks it for the type of problem
        trainer = make_trainer(
            CYCLICAL, model=model, max_steps=T, label_smoothing_factor=0.1, gradient_accumulation_steps=accumulation
        )
        trainer.train()
        assert_equals_the_reference(trainer, accumulation, loss=smooth)

    def test_mixup_by_a_collator_and_a_loss_for_soft_labels(self, make_trainer):
        def mixup(rows):
            batch = default_collate(rows)
            pixels, labels = batch["pixel_values"], one_hot(batch["labels"], 3).float()
            return {
                "pixel_values": 0.7 * pixels + 0.3 * pixels.flip(0),
                "labels": 0.7 * labels + 0.3 * labels.flip(0),
            }

        def soft_loss(outputs, labels, num_items_in_batch=None):
            return cross_entropy(outputs["logits"], labels)

        arguments = make_trainer(max_steps=T, logging_strategy="steps", logging_steps=1).args
        trainer = OrderedPruningTrainer(
            TinyNet(), arguments, pruning=PruningConfig(**CYCLICAL), train_dataset=TinyImages(), data_collator=mixup,
            compute_loss_func=soft_loss,
        )  # fmt: skip
        trainer.train()
        first = mixup(batches_of_8(1)[0])
        by_hand = -(first["labels"] * log_softmax(TinyNet()(first["pixel_values"])["logits"], dim=1)).sum() / 8
        assert trainer.state.log_history[0]["loss"] == pytest.approx(by_hand.item(), rel=1e-4)
        assert_equals_the_reference(
            trainer, loss=lambda model, x, y: cross_entropy(model(x)["logits"], y), collate=mixup
        )

    @pytest.mark.parametrize("family", ["ResNet", "MobileNetV2", "ViT", "ConvNext", "timm"])
    def test_accumulation_changes_neither_loss_nor_gradient(self, make_trainer, tmp_path, family):
        class Gradient(TrainerCallback):
            def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
                gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))

        if family == "timm":
            torch.manual_seed(0)
            model = TimmWrapperForImageClassification(TimmWrapperConfig(architecture="test_resnet", num_labels=3))
        else:
            model = save_family(family, tmp_path / "model")
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        # The same 8 images four times: BatchNorm then sees the same statistics in every part as in the whole.
        images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
        data = [{"pixel_values": images[i % 8], "labels": i % 8 % 3} for i in range(32)]
        losses, gradients = [], []
        for batch, accumulation in ((32, 1), (8, 4)):
            arguments = make_trainer(
                max_steps=1, logging_strategy="steps", logging_steps=1, per_device_train_batch_size=batch,
                gradient_accumulation_steps=accumulation, learning_rate=1e-3,
            ).args  # fmt: skip
            trainer = OrderedPruningTrainer(
                copy.deepcopy(model), arguments, pruning=PruningConfig("one_shot", 0.5), train_dataset=data,
                callbacks=[Gradient()],
            )  # fmt: skip
            trainer.train()
            losses.append(trainer.state.log_history[0]["loss"])
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        assert torch.linalg.vector_norm(gradients[0]) > 0.01
        difference = torch.linalg.vector_norm(gradients[0] - gradients[1]) / torch.linalg.vector_norm(gradients[0])
        assert difference < 1e-3
