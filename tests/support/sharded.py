"""FSDP2 on CPUs, which Accelerate does not offer: tests only, as it reaches into Accelerate's state."""

from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState
from support.tiny import OrderedPruningTrainer


class ShardedTrainer(OrderedPruningTrainer):
    """A trainer as it is when several processes on GPUs are launched with FSDP2."""

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        self.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="TRANSFORMER_BASED_WRAP",
            reshard_after_forward=True,
            state_dict_type="SHARDED_STATE_DICT",
            cpu_ram_efficient_loading=False,
        )
        self.accelerator.state.distributed_type = DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        self.is_fsdp_enabled = True
