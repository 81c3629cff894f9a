"""CyclicalPruningTrainer against Algorithm 1 as a naive loop, and its clock."""

import pytest
import torch
from reference import reference_run
from support.tiny import CYCLICAL, TinyImages, TinyNet, Watcher

from hf_cyclical import CyclicalPruningTrainer, PruningConfig, PruningError


class TestEqualsTheReference:
    @pytest.mark.parametrize("mask_momentum", [False, True])
    @pytest.mark.parametrize("accumulation", [1, 3])
    @pytest.mark.parametrize(
        ("optim", "make_optimizer"),
        [
            ({"optim": "sgd", "optim_args": "momentum=0.9"}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
            ({"optim": "adamw_torch", "optim_args": None}, lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.0)),
        ],
        ids=["sgd", "adamw"],
    )
    @pytest.mark.parametrize("row_floor", [0, 1])
    def test_masks_and_weights(self, make_trainer, optim, make_optimizer, accumulation, mask_momentum, row_floor):
        updates = 24
        pruning = CYCLICAL | {"mask_momentum": mask_momentum, "row_floor": row_floor}
        trainer = make_trainer(pruning, max_steps=updates, gradient_accumulation_steps=accumulation, **optim)
        trainer.train()

        model, data = TinyNet(), TinyImages()
        batches = [(data.pixels[i : i + 8], data.labels[i : i + 8]) for i in range(0, len(data), 8)]
        micro = [batches[i % len(batches)] for i in range(updates * accumulation)]
        masks, _ = reference_run(
            model,
            [micro[i : i + accumulation] for i in range(0, len(micro), accumulation)],
            make_optimizer,
            s_t=0.9,
            k=2,
            delta_t=3,
            names=["conv.weight", "hidden.weight", "head.weight"],
            mask_momentum=mask_momentum,
            row_floor=row_floor,
        )

        for name, mask in masks.items():
            assert torch.equal(trainer.pruner.masks[name], mask), name
        for name, p in model.named_parameters():
            torch.testing.assert_close(trainer.model.get_parameter(name), p, rtol=1e-5, atol=1e-6)

    def test_batch_32_equals_8_by_accumulation_of_4(self, make_trainer):
        whole = make_trainer(CYCLICAL, max_steps=12, per_device_train_batch_size=32)
        parts = make_trainer(CYCLICAL, max_steps=12, per_device_train_batch_size=8, gradient_accumulation_steps=4)
        whole.train()
        parts.train()
        for name, mask in whole.pruner.masks.items():
            assert torch.equal(mask, parts.pruner.masks[name])
            torch.testing.assert_close(whole.pruner.params[name], parts.pruner.params[name], rtol=1e-4, atol=1e-6)


class TestClock:
    def test_every_event_after_the_step_sees_masked_weights(self, make_trainer):
        watcher = Watcher()
        trainer = make_trainer({"target_sparsity": 0.8, "method": "one_shot"}, max_steps=6, callbacks=[watcher])
        trainer.train()
        assert watcher.sparsities == pytest.approx([trainer.run.sparsity] * 6)

    def test_the_learning_rate_follows_the_recipe(self, make_trainer):
        watcher = Watcher()
        trainer = make_trainer(CYCLICAL, max_steps=20, callbacks=[watcher])
        trainer.train()
        # Two cycles of 10; the drop comes at round(0.75 * 10) = 8.
        assert watcher.rates == pytest.approx(([0.1] * 8 + [0.01] * 2) * 2)

    def test_one_update_per_accumulation_window(self, make_trainer):
        watcher = Watcher()
        make_trainer(CYCLICAL, max_steps=6, gradient_accumulation_steps=2, callbacks=[watcher]).train()
        assert watcher.at_step == list(range(6))


def test_freeze_keeps_the_zeros_of_a_sparse_model(make_trainer):
    model = TinyNet()
    with torch.no_grad():
        model.hidden.weight[::2] = 0
    trainer = make_trainer({"method": "freeze"}, model=model, max_steps=12)
    trainer.train()
    assert int((model.hidden.weight[::2] != 0).sum()) == 0
    assert int((model.hidden.weight[1::2] == 0).sum()) == 0
    assert not torch.equal(model.hidden.weight[1::2], TinyNet().hidden.weight[1::2])


class TestPruningAsADict:
    def test_is_the_configuration(self, make_trainer):
        trainer = CyclicalPruningTrainer(TinyNet(), make_trainer(max_steps=4).args, pruning={"target_sparsity": 0.7})
        assert trainer.pruning == PruningConfig(target_sparsity=0.7)

    @pytest.mark.parametrize(
        ("pruning", "line"),
        [
            ({"cycle": 3}, "pruning setting 'cycle' is not one of .*: did you mean cycles[?]"),
            ({"cycles": 0}, "cycles 0 must be a whole number of at least 1"),
            (0.9, "pruning 0.9 is no PruningConfig: pass PruningConfig[(]target_sparsity=0.9[)]"),
            (None, "pruning None is no PruningConfig: pass PruningConfig"),
        ],
    )
    def test_what_cannot_be_one_is_refused_in_one_line(self, pruning, line):
        with pytest.raises(PruningError, match=line) as error:
            CyclicalPruningTrainer(TinyNet(), pruning=pruning)
        assert "\n" not in str(error.value)


def test_the_recipe_is_built_once(make_trainer, monkeypatch):
    built = []
    recipe = PruningConfig.recipe
    monkeypatch.setattr(PruningConfig, "recipe", lambda *args: built.append(args) or recipe(*args))
    trainer = make_trainer(CYCLICAL, max_steps=12)
    planned = trainer.plan()
    trainer.train()
    assert len(built) == 1
    assert trainer.run.recipe is planned


def test_share_and_patterns_reach_the_pruner(make_trainer):
    trainer = make_trainer(
        {
            "target_sparsity": 0.8,
            "method": "one_shot",
            "share": "global",
            "include": ["conv", "hidden"],
            "exclude": ["conv"],
        },
        max_steps=4,
    )
    trainer.train()
    assert list(trainer.pruner.masks) == ["hidden.weight"]
    both = make_trainer({"target_sparsity": 0.8, "method": "one_shot", "share": "global"}, max_steps=4)
    both.train()
    kept = {name: mask.float().mean() for name, mask in both.pruner.masks.items()}
    assert max(kept.values()) - min(kept.values()) > 0.1  # a rank over all layers keeps more of some
    assert both.run.sparsity == pytest.approx(0.8, abs=1e-3)
