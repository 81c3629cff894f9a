"""CyclicalPruningTrainer on several real processes, against one process with the same batches."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from safetensors.torch import load_file
from support.processes import on_processes
from support.sharded import ShardedTrainer
from support.tiny import TinyNet, build_trainer
from support.tiny_models import save_family
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import TimmWrapperConfig, TimmWrapperForImageClassification, TrainerCallback

from hf_cyclical import PruningError
from hf_cyclical.core import leave_group
from hf_cyclical.training import StopOnSignalCallback

PRUNING = {"target_sparsity": 0.7, "cycles": 2, "delta_t": 3}
SPARSE = PRUNING | {"target_sparsity": 0.97}  # with rows at their floor
SPARSE_RECOVERY = {"method": "gradual_recovery", "share": "global", "target_sparsity": 0.97, "delta_t": 3}
SAVES = {"save_strategy": "steps", "save_steps": 5}
MODES = ["ddp", "fsdp2"]


def result_of(trainer):
    """Whole weights, masks and the report of a run."""
    pruner = trainer.pruner
    weights = {name: p.full_tensor() if isinstance(p, DTensor) else p for name, p in pruner.params.items()}
    return {
        "weights": {name: w.detach().clone() for name, w in weights.items()},
        "masks": pruner.state_dict()["masks"],
        "report": trainer.report.to_dict(),
        "split": all(isinstance(p, DTensor) for p in pruner.params.values()),
        "processes": trainer.args.world_size,
    }


def run(rank, folder, mode, resume=None, pruning=PRUNING, **arguments):
    arguments = {"per_device_train_batch_size": 8 if mode == "one" else 4} | arguments
    arguments = {"max_steps": 24, "learning_rate": 0.3} | arguments
    kind = ShardedTrainer if mode == "fsdp2" else None
    trainer = build_trainer(folder, pruning, kind=kind, model=TinyNet(seed=rank if resume else 0), **arguments)
    trainer.train(resume_from_checkpoint=resume)
    return result_of(trainer)


def assert_same_run(a, b, exact=False):
    for name, mask in a["masks"].items():
        assert torch.equal(mask, b["masks"][name]), name
        close = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(a["weights"][name], b["weights"][name], **close)
    assert a["report"]["masks"] == b["report"]["masks"]
    assert a["report"]["layers"] == b["report"]["layers"]
    for one, other in zip(a["report"]["cycles"], b["report"]["cycles"], strict=True):
        assert one["largest"] == pytest.approx(other["largest"], rel=0 if exact else 1e-4)
        assert one | {"largest": 0, "metrics": {}} == other | {"largest": 0, "metrics": {}}


def assert_at_the_floor(result):
    """Rows are at their floor at the end of each cycle, and weights have returned."""
    assert all(cycle["floor_rows"] > 0 for cycle in result["report"]["cycles"])
    assert result["report"]["cycles"][-1]["regrown"] > 0


class TestTwoProcessesAgainstOne:
    @pytest.mark.parametrize("share", ["uniform", "global", "lamp"])
    @pytest.mark.parametrize("mode", MODES)
    def test_masks_and_weights(self, tmp_path, mode, share):
        pruning = SPARSE | {"share": share}
        one = run(0, tmp_path / "one", "one", pruning=pruning)
        two = on_processes(2, run, tmp_path / "two", mode, None, pruning)
        assert [r["processes"] for r in two] == [2, 2]
        assert [r["split"] for r in two] == [mode == "fsdp2"] * 2
        assert_same_run(two[0], two[1], exact=True)
        assert_same_run(two[0], one)
        assert_at_the_floor(two[0])


class TestResume:
    @pytest.mark.parametrize("pruning", [SPARSE, SPARSE_RECOVERY], ids=["cyclical", "gradual_recovery"])
    @pytest.mark.parametrize("mode", MODES)
    def test_goes_on_as_if_nothing_had_happened(self, tmp_path, mode, pruning):
        pruning = pruning | {"ema_decay": 0.7, "mask_momentum": True}
        whole = on_processes(2, run_and_resume, tmp_path, mode, pruning, SAVES)
        for first, again in whole:
            assert_same_run(first, again, exact=True)
            assert first["report"] == again["report"]
            assert_at_the_floor(first)

    @pytest.mark.parametrize(
        ("mode", "there", "here", "pruning"),
        [("ddp", 2, 1, PRUNING), ("ddp", 1, 2, SPARSE), ("fsdp2", 2, 4, SPARSE | {"share": "global"})],
        ids=["ddp-2-1", "ddp-1-2", "fsdp2-2-4"],
    )
    def test_with_another_number_of_processes(self, tmp_path, mode, there, here, pruning):
        runs = []
        for n, resume in ((there, None), (here, str(tmp_path / str(there) / "checkpoint-10"))):
            runs.append(on_processes(n, run_saving, tmp_path / str(n), mode, resume, 8 // n, pruning)[0])
        assert [r["processes"] for r in runs] == [there, here]
        assert_same_run(*runs)
        if pruning is not PRUNING:
            assert_at_the_floor(runs[0])

    @pytest.mark.parametrize(
        ("there", "here", "words"),
        [("ddp", "fsdp2", "with FSDP2 here, without there"), ("fsdp2", "ddp", "with FSDP2 there, without here")],
    )
    def test_fsdp2_and_none_do_not_mix(self, tmp_path, there, here, words):
        on_processes(2, run_saving, tmp_path / there, there, None, 4)
        with pytest.raises(PruningError, match=words):
            on_processes(2, run_saving, tmp_path / here, here, str(tmp_path / there / "checkpoint-10"), 4)


def run_saving(rank, folder, mode, resume, batch, pruning=PRUNING):
    return run(rank, folder, mode, resume, pruning, per_device_train_batch_size=batch, **SAVES)


def run_and_resume(rank, folder, mode, pruning, saves):
    first = run(rank, folder / "whole", mode, pruning=pruning, **saves)
    again = run(rank, folder / "again", mode, str(folder / "whole" / "checkpoint-10"), pruning, **saves)
    return first, again


class Normed(TinyNet):
    """With statistics that differ between processes, as each sees other images."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def forward(self, pixel_values, labels=None):
        x = self.norm(self.conv(pixel_values)).relu().flatten(1)
        logits = self.head(self.hidden(x).relu())
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def statistics_when_evaluated(rank, folder, mode):
    class Look(TrainerCallback):
        def __init__(self):
            self.means = []

        def on_evaluate(self, args, state, control, model=None, **kwargs):
            self.means.append(model.norm.running_mean.clone())

    look = Look()
    trainer = build_trainer(
        folder, PRUNING, kind=ShardedTrainer if mode == "fsdp2" else None, model=Normed(), callbacks=[look],
        max_steps=12, per_device_train_batch_size=4, eval_strategy="steps", eval_steps=5, ddp_broadcast_buffers=False,
    )  # fmt: skip
    trainer.train()
    trainer.save_model(str(folder / "saved"))
    return look.means, trainer.model.norm.running_mean.clone()


@pytest.mark.parametrize("mode", MODES)
def test_statistics_of_batch_norm_are_the_same_everywhere(tmp_path, mode):
    (means, mean), (other_means, other_mean) = on_processes(2, statistics_when_evaluated, tmp_path, mode)
    assert len(means) == 5  # the dense model, at 5 and 10, and at the end of each cycle of 6
    assert all(torch.equal(a, b) for a, b in zip(means, other_means, strict=True))
    assert torch.equal(mean, other_mean)
    assert torch.equal(load_file(tmp_path / "saved" / "model.safetensors")["norm.running_mean"], mean)


def threads_of_gloo():
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    return sum("gloo" in name for name in names)


def leave(rank, folder):
    run(rank, folder, "ddp")
    before = threads_of_gloo()
    leave_group()
    return before > 0, threads_of_gloo()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_no_thread_outlives_the_group(tmp_path):
    found = on_processes(2, leave, tmp_path)
    if found == [(False, 0)] * 2 and Version(torch.__version__) < Version("2.15"):
        pytest.skip("this version of torch gives its threads no names")
    assert found == [(True, 0)] * 2


def losses_of_families(rank, folder, mode):
    """The first loss of a model of each family; the images of every part of a batch are the same, as is BatchNorm's."""
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    data = [{"pixel_values": images[i % 4], "labels": i % 4 % 3} for i in range(64)]
    losses = {}
    for family in ("ResNet", "MobileNetV2", "ViT", "ConvNext", "timm"):
        model = make_model(family, folder / f"{family}-{rank}")
        trainer = build_trainer(
            folder, PRUNING, kind=ShardedTrainer if mode == "fsdp2" else None, model=model, train_dataset=data,
            max_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=1 if mode == "one" else 2,
            logging_strategy="steps", logging_steps=1, learning_rate=1e-3, eval_dataset=None,
        )  # fmt: skip
        trainer.train()
        trainer.save_model(str(folder / family))
        losses[family] = trainer.state.log_history[0]["loss"]
    return losses


def make_model(family, folder):
    torch.manual_seed(0)
    if family == "timm":
        model = TimmWrapperForImageClassification(TimmWrapperConfig(architecture="test_resnet", num_labels=3))
    else:
        model = save_family(family, folder)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def test_the_loss_is_not_multiplied_by_processes_or_accumulation(tmp_path):
    """Some heads drop what the Trainer hands them, which made it multiply their losses: here by four."""
    one = losses_of_families(0, tmp_path / "one", "one")
    for mode in MODES:
        for losses in on_processes(2, losses_of_families, tmp_path / mode, mode):
            assert losses == pytest.approx(one, rel=1e-4)
        for family in one:
            saved = load_file(tmp_path / mode / family / "model.safetensors")
            zeros = sum(int((weight == 0).sum()) for weight in saved.values() if weight.ndim > 1)
            weights = sum(weight.numel() for weight in saved.values() if weight.ndim > 1)
            assert zeros / weights > 0.6


def best_of_a_run(rank, folder, mode):
    trainer = build_trainer(
        folder, PRUNING, kind=ShardedTrainer if mode == "fsdp2" else None, max_steps=24, per_device_train_batch_size=4,
        save_strategy="steps", save_steps=3, eval_strategy="steps", eval_steps=3, load_best_model_at_end=True,
        metric_for_best_model="loss", greater_is_better=True,  # the worst, which is not the last
    )  # fmt: skip
    trainer.train()
    best = trainer.state.best_global_step
    losses = {row["update"]: row["loss"] for row in trainer.report.evaluations}
    return result_of(trainer), best, losses[best], trainer.evaluate()["eval_loss"]


@pytest.mark.parametrize("mode", MODES)
def test_every_process_ends_with_the_best_model(tmp_path, mode):
    (one, best, then, now), (other, _, _, other_now) = on_processes(2, best_of_a_run, tmp_path, mode)
    assert best < 24
    assert now == other_now == pytest.approx(then)
    assert_same_run(one, other, exact=True)


def save_on_one_process(rank, folder):
    trainer = build_trainer(folder, PRUNING, model=Normed(), max_steps=12, per_device_train_batch_size=4)
    trainer.train()
    if trainer.is_world_process_zero():
        trainer.save_model(str(folder / "saved"))


def test_one_process_may_save_alone(tmp_path):
    on_processes(2, save_on_one_process, tmp_path)
    assert (tmp_path / "saved" / "model.safetensors").is_file()


def drift_apart(rank, folder):
    class Drift(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            if state.global_step == 4 and rank == 1:
                with torch.no_grad():
                    model.hidden.weight.neg_().add_(0.1)

    build_trainer(folder, PRUNING, callbacks=[Drift()], max_steps=24, per_device_train_batch_size=4).train()


def test_processes_that_drift_apart_are_an_error(tmp_path):
    with pytest.raises(PruningError, match=r"masks of \S+ on process 1 are not those of process 0"):
        on_processes(2, drift_apart, tmp_path)


def stop_by_signal(rank, folder):
    class Signal(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 7 and rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    stop = StopOnSignalCallback()
    trainer = build_trainer(
        folder, PRUNING, callbacks=[stop, Signal()], max_steps=24, per_device_train_batch_size=4,
    )  # fmt: skip
    trainer.train()
    return stop.stopped, trainer.state.global_step


def test_a_signal_to_one_process_stops_all_after_the_same_update(tmp_path):
    assert on_processes(2, stop_by_signal, tmp_path) == [(True, 8), (True, 8)]
    assert json.loads(Path(tmp_path, "checkpoint-8", "pruning_state.json").read_text())["t"] == 8
