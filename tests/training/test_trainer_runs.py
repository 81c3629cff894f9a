"""Runs that stop, go on, or must not start."""

import json
import os
import signal

import pytest
import torch
from support.tiny import CYCLICAL, OrderedPruningTrainer, TinyNet, same_weights
from transformers import EarlyStoppingCallback, TrainerCallback

from hf_cyclical import PruningError, prunable_parameters
from hf_cyclical.training import StopOnSignalCallback
from hf_cyclical.training.checkpoints import seal


class TestResume:
    @pytest.mark.parametrize("at", [4, 12, 22], ids=["ramp", "boundary", "tail"])
    @pytest.mark.parametrize("method", ["cyclical", "gradual_recovery"])
    @pytest.mark.parametrize("share", ["uniform", "global"])
    def test_goes_on_as_if_nothing_had_happened(self, make_trainer, tmp_path, at, method, share):
        """At a sparsity at which rows are at their floor, and a rate at which weights return all the same."""
        pruning = {"method": method, "share": share, "target_sparsity": 0.97, "delta_t": 3}
        pruning |= {"cycles": 2} if method == "cyclical" else {}
        arguments = {"num_train_epochs": 2, "shuffle": True, "save_strategy": "steps", "save_steps": at}
        arguments["learning_rate"] = 0.3
        whole = make_trainer(pruning, output_dir=str(tmp_path / "whole"), **arguments)
        whole.train()

        resumed = make_trainer(pruning, model=TinyNet(seed=7), output_dir=str(tmp_path / "resumed"), **arguments)
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{at}"))
        assert same_weights(whole.model, resumed.model)
        assert all(torch.equal(whole.pruner.masks[n], resumed.pruner.masks[n]) for n in whole.pruner.masks)
        assert resumed.report.to_dict() == whole.report.to_dict()
        assert all(cycle.floor_rows > 0 for cycle in whole.report.cycles)
        assert whole.report.cycles[-1].regrown > 0

    def test_from_the_last_update_inside_an_epoch_makes_none_more(self, make_trainer, tmp_path):
        arguments = {"max_steps": 16, "save_strategy": "steps", "save_steps": 16}  # an epoch has 12
        whole = make_trainer(CYCLICAL, **arguments)
        whole.train()
        resumed = make_trainer(CYCLICAL, model=TinyNet(seed=7), output_dir=str(tmp_path / "resumed"), **arguments)
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-16"))
        assert resumed.state.global_step == 16
        assert same_weights(whole.model, resumed.model)
        assert resumed.report.to_dict() == whole.report.to_dict()

    def test_a_foreign_checkpoint_is_refused(self, make_trainer, tmp_path):
        make_trainer(max_steps=4, save_strategy="steps", save_steps=4).train()
        with pytest.raises(PruningError, match="holds no masks"):
            make_trainer(CYCLICAL, max_steps=12).train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))

    def test_a_signal_saves_and_stops(self, make_trainer, tmp_path):
        class CtrlC(TrainerCallback):
            def on_substep_end(self, args, state, control, **kwargs):
                if state.global_step == 6:
                    os.kill(os.getpid(), signal.SIGINT)

        before = signal.getsignal(signal.SIGINT)
        stop = StopOnSignalCallback()
        arguments = {"max_steps": 12, "gradient_accumulation_steps": 2}
        trainer = make_trainer(CYCLICAL, callbacks=[stop, CtrlC()], **arguments)
        trainer.train()
        assert stop.stopped
        assert trainer.state.global_step == 7
        assert signal.getsignal(signal.SIGINT) is before

        whole = make_trainer(CYCLICAL, output_dir=str(tmp_path / "whole"), **arguments)
        whole.train()
        trainer.remove_callback(CtrlC)
        trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-7"))
        assert same_weights(whole.model, trainer.model)

    @pytest.mark.parametrize(
        ("changed", "arguments", "words"),
        [
            ({"exclude": ["head"]}, {}, r"exclude is None there, \['head'\] here"),
            ({}, {"max_steps": 30}, "it has 12 updates there, 30 here"),
        ],
    )
    def test_a_checkpoint_of_another_run_is_refused(self, make_trainer, tmp_path, changed, arguments, words):
        make_trainer(CYCLICAL, max_steps=12, save_strategy="steps", save_steps=8).train()
        trainer = make_trainer(CYCLICAL | changed, **({"max_steps": 12} | arguments))
        with pytest.raises(PruningError, match=words):
            trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-8"))

    def test_a_checkpoint_from_before_a_setting_existed_goes_on_without_it(self, make_trainer, tmp_path):
        class Older(OrderedPruningTrainer):
            def settings(self):
                newer = ("mask_momentum", "row_floor")
                return {name: value for name, value in super().settings().items() if name not in newer}

        printed = CYCLICAL | {"mask_momentum": False, "row_floor": 0}
        make_trainer(printed, kind=Older, max_steps=12, save_strategy="steps", save_steps=8).train()
        checkpoint = str(tmp_path / "run" / "checkpoint-8")
        make_trainer(printed, max_steps=12).train(resume_from_checkpoint=checkpoint)
        for changed, words in (("mask_momentum", "False there, True here"), ("row_floor", "0 there, 1 here")):
            trainer = make_trainer(printed | {changed: None}, max_steps=12)
            with pytest.raises(PruningError, match=f"{changed} is {words}"):
                trainer.train(resume_from_checkpoint=checkpoint)

    def test_true_stands_for_the_last_checkpoint_and_is_checked_alike(self, make_trainer):
        with pytest.raises(PruningError, match="holds no checkpoint"):
            make_trainer(CYCLICAL, max_steps=12).train(resume_from_checkpoint=True)
        make_trainer(CYCLICAL, max_steps=12, save_strategy="steps", save_steps=8).train()
        with pytest.raises(PruningError, match="cycles is 2 there, 3 here"):
            make_trainer(CYCLICAL | {"cycles": 3}, max_steps=12).train(resume_from_checkpoint=True)

    def test_a_checkpoint_of_another_model_is_refused(self, make_trainer, tmp_path):
        make_trainer(CYCLICAL, max_steps=12, save_strategy="steps", save_steps=8).train()
        model = TinyNet()
        model.head = torch.nn.Linear(24, 5)
        with pytest.raises(PruningError, match=r"head\.weight has shape \[3, 24\] there, \[5, 24\] here"):
            make_trainer(CYCLICAL, model=model, max_steps=12).train(str(tmp_path / "run" / "checkpoint-8"))

    @pytest.mark.parametrize("strategy", [{"eval_strategy": "steps", "eval_steps": 6}, {"eval_strategy": "epoch"}])
    def test_a_signal_costs_no_evaluation_that_was_due(self, make_trainer, tmp_path, strategy):
        class Signal(TrainerCallback):
            def on_optimizer_step(self, args, state, control, **kwargs):
                if state.global_step + 1 == (12 if args.eval_strategy == "epoch" else 6):
                    os.kill(os.getpid(), signal.SIGTERM)

        pruning = CYCLICAL | {"cycles": 1}  # ends at 24: no cycle ends where the signal comes
        arguments = {"num_train_epochs": 2, **strategy}
        whole = make_trainer(pruning, output_dir=str(tmp_path / "whole"), **arguments)
        whole.train()
        stop = StopOnSignalCallback()
        trainer = make_trainer(pruning, callbacks=[stop, Signal()], **arguments)
        trainer.train()
        assert stop.stopped
        resumed = make_trainer(pruning, eval_on_start=True, **arguments)
        resumed.train(resume_from_checkpoint=True)
        assert resumed.report.evaluations == whole.report.evaluations

    def test_the_patience_of_early_stopping_goes_on(self, make_trainer, tmp_path):
        arguments = {
            "max_steps": 24, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1,
            "load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True,
        }  # fmt: skip
        pruning = {"method": "one_shot", "target_sparsity": 0.5}
        whole = make_trainer(pruning, callbacks=[EarlyStoppingCallback(4)], **arguments)
        whole.train()
        end = whole.state.global_step
        assert 4 < end < 24
        resumed = make_trainer(
            pruning, callbacks=[EarlyStoppingCallback(4)], output_dir=str(tmp_path / "resumed"), **arguments
        )
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{end - 2}"))
        assert resumed.state.global_step == end

    def test_a_newer_format_is_refused(self, make_trainer, tmp_path):
        make_trainer(CYCLICAL, max_steps=12, save_strategy="steps", save_steps=8).train()
        folder = tmp_path / "run" / "checkpoint-8"
        state = json.loads((folder / "pruning_state.json").read_text())
        (folder / "pruning_state.json").write_text(json.dumps(state | {"format": 99}))
        (folder / "manifest.json").unlink()
        seal(folder)
        with pytest.raises(PruningError, match=r"is of format 99, .* reads 2: resume with a newer version"):
            make_trainer(CYCLICAL, max_steps=12).train(str(folder))

    def test_a_signal_does_not_cost_the_checkpoint_it_made(self, make_trainer, tmp_path):
        class CtrlC(TrainerCallback):
            def on_substep_end(self, args, state, control, **kwargs):
                if state.global_step == 15:
                    os.kill(os.getpid(), signal.SIGINT)

        trainer = make_trainer(
            CYCLICAL, max_steps=24, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=4,
            save_strategy="steps", save_steps=4, load_best_model_at_end=True, metric_for_best_model="accuracy",
            save_total_limit=1, callbacks=[StopOnSignalCallback(), CtrlC()],
        )  # fmt: skip
        trainer.train()
        assert (tmp_path / "run" / "checkpoint-16" / "pruning_state.json").is_file()


class TestRefusals:
    @pytest.mark.parametrize(
        ("pruning", "arguments", "words"),
        [
            (CYCLICAL, {"lr_scheduler_type": "cosine"}, "lr_scheduler_type .* lr_shape"),
            (CYCLICAL, {"warmup_steps": 10}, "warmup_steps .* lr_shape"),
            (CYCLICAL | {"cycles": 9}, {"max_steps": 10}, "cycles 9 takes at least 18 updates .* has 10"),
            (CYCLICAL | {"dense_epochs": 1}, {"max_steps": 10}, "dense_epochs 1 .* dense_updates"),
            (CYCLICAL | {"exclude": ["heat"]}, {}, "exclude pattern 'heat' matches no layer: near names are head"),
            ({"method": "freeze"}, {}, "freeze.* has none"),
        ],
    )
    def test_one_line_before_training(self, make_trainer, pruning, arguments, words):
        before = TinyNet()
        model = TinyNet()
        with pytest.raises(PruningError, match=words) as caught:
            make_trainer(pruning, model=model, **arguments).train()
        assert "\n" not in str(caught.value)
        assert same_weights(before, model)

    def test_nan_weights_name_the_layer(self, make_trainer):
        model = TinyNet()
        with torch.no_grad():
            model.hidden.weight[3, 3] = torch.nan
        with pytest.raises(PruningError, match=r"hidden\.weight has 1 NaN"):
            make_trainer(CYCLICAL, model=model, max_steps=12).train()

    def test_a_users_own_scheduler(self, make_trainer):
        model = TinyNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1.0)
        with pytest.raises(PruningError, match="recipe sets the learning rate"):
            make_trainer(CYCLICAL, model=model, optimizers=(optimizer, scheduler))


def test_a_checkpoint_holds_no_pickle_of_ours(make_trainer, tmp_path):
    make_trainer(CYCLICAL, max_steps=12, save_strategy="steps", save_steps=12).train()
    folder = tmp_path / "run" / "checkpoint-12"
    state = json.loads((folder / "pruning_state.json").read_text())
    assert state["t"] == 12
    packed = (folder / "pruning_state.safetensors").stat().st_size
    weights = sum(p.numel() for p in prunable_parameters(TinyNet()).values())
    assert packed < weights  # 5 bits a weight and a header
