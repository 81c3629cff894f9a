"""Hugging Face's Trainer around Algorithm 1: callbacks, checkpoints, guards, plan, metrics."""

from hf_cyclical import lazy_names

# The public names of this room, by the module that is imported when one of them is first asked for.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    budget="Cost seconds_of",
    callbacks="SetEpochCallback StopOnSignalCallback TargetEarlyStoppingCallback",
    checkpoints="newest_checkpoint",
    freed_memory="keep_freed_memory",
    lean_trainer="LeanTrainer is_convolutional",
    metrics="accuracy load_metric rank_classes",
    of_task="task_arguments",
    output_lock="OutputLock is_running",
    plan="describe_plan",
    pruning_state="epochs_of read_progress",
    recalibration="batch_norms",
    run="PruningRun",
    time_estimate="estimate_time fit_to_budget with_dense_part",
    tested_versions="TESTED newer_than_tested warn_of_newer",
    trainer="CyclicalPruningTrainer",
)
