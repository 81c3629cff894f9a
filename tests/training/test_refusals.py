"""Ways of running that are not supported: refused before training, with what to use instead."""

import os

import pytest
from accelerate import DistributedType, FullyShardedDataParallelPlugin, ParallelismConfig
from accelerate.state import AcceleratorState
from support.processes import on_processes
from support.tiny import CYCLICAL, OrderedPruningTrainer, TinyNet, build_trainer, same_weights
from torch.distributed.fsdp import CPUOffloadPolicy

from hf_cyclical import PruningError

INSTEAD = r"use DDP \(torchrun --nproc_per_node N\) or FSDP2 \(accelerate launch --use_fsdp --fsdp_version 2\)"


@pytest.fixture(autouse=True)
def own_state():
    """Accelerate keeps its state for the whole process, some in variables: what is pretended here must end here."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    AcceleratorState._reset_state(reset_partial_state=True)


def pretend(change):
    """A trainer class that finds itself launched in another way: most of them need packages or devices to be real."""

    class Pretending(OrderedPruningTrainer):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            change(self)

    return Pretending


def deepspeed(trainer):
    trainer.is_deepspeed_enabled = True


def fsdp(**settings):
    def change(trainer):
        trainer.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(**settings)
        trainer.is_fsdp_enabled = True

    return change


def distributed_type(kind):
    def change(trainer):
        trainer.accelerator.state.distributed_type = kind

    return change


def two_gpus(trainer):
    trainer.args._n_gpu = 2


def tensor_parallelism(trainer):
    trainer.accelerator.state.parallelism_config = ParallelismConfig()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (deepspeed, "DeepSpeed trains a copy of the weights.*: " + INSTEAD),
        (fsdp(fsdp_version=1), "FSDP version 1 hides the layers' weights: " + INSTEAD),
        (fsdp(fsdp_version=2, cpu_offload=CPUOffloadPolicy()), "cpu_offload is not tested: turn it off"),
        (fsdp(fsdp_version=2, activation_checkpointing=True), "activation_checkpointing is not tested: use gradient_"),
        (fsdp(fsdp_version=2, auto_wrap_policy="SIZE_BASED_WRAP"), "SIZE_BASED_WRAP fails on lists of layers: use"),
        (distributed_type(DistributedType.MULTI_XPU), "MULTI_XPU is not tested: " + INSTEAD),
        (distributed_type(DistributedType.MEGATRON_LM), "MEGATRON_LM is not tested: " + INSTEAD),
        (two_gpus, r"2 GPUs in one process \(DataParallel\) are not tested: " + INSTEAD),
        (tensor_parallelism, "tensor, context and sequence parallelism are not tested: " + INSTEAD),
    ],
)
def test_ways_of_running(tmp_path, change, words):
    model = TinyNet()
    with pytest.raises(PruningError, match=words) as caught:
        build_trainer(tmp_path, CYCLICAL, model=model, kind=pretend(change))
    assert "\n" not in str(caught.value)
    assert same_weights(model, TinyNet())


def test_fsdp_that_accelerate_would_silently_leave_out(tmp_path):
    with pytest.raises(
        PruningError, match=r"FSDP was asked for, and Accelerate would run 2 processes \(DDP\) without it"
    ):
        on_processes(2, _ask_for_fsdp, tmp_path)


def _ask_for_fsdp(rank, folder):
    build_trainer(folder, CYCLICAL, fsdp=True)


def test_fsdp_asked_for_by_the_launcher(make_trainer, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(PruningError, match="FSDP was asked for"):
        make_trainer(CYCLICAL)


def test_an_optimizer_that_saves_other_weights_than_it_trains(make_trainer):
    with pytest.raises(PruningError, match="optim 'schedule_free_sgd' evaluates and saves other weights"):
        make_trainer(CYCLICAL, optim="schedule_free_sgd")
