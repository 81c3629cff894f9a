"""The job of `hf-cyclical prune`: plan, train, save, push, and what is said on the way."""

import logging
import shlex
import sys
from pathlib import Path

import transformers

from hf_cyclical.core import PruningError, leave_group
from hf_cyclical.formats import without_secrets
from hf_cyclical.hub import create_repository, push, push_command
from hf_cyclical.paper import drop_checkpoints
from hf_cyclical.reports import FIGURE_NAME, REPORT_NAME, show
from hf_cyclical.training import (
    CyclicalPruningTrainer,
    describe_plan,
    epochs_of,
    estimate_time,
    fit_to_budget,
    with_dense_part,
)

from .arguments import Arguments
from .command_line import INTERRUPTED, fail, stopped_pushing, without_resume
from .earlier_run import refuse_to_replace
from .run import Run


def prune(args: Arguments, argv: list[str]) -> int:
    """Carry out what the arguments, which are those of the command line `argv`, ask for; gives the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_cyclical").setLevel(logging.INFO if args.training.should_log else logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()  # those of loading and saving; the training's bar stays
    code = _prune(args, argv)
    leave_group()  # once nothing holds the trainer, and with it the group
    return code


def _prune(args: Arguments, argv: list[str]) -> int:
    try:
        run = Run.build(args)
        notes = [*run.data.describe(run.loaded.settings), *run.notes]
        notes += [_fit(run, args.run.budget)] if args.run.budget else []
        notes += [estimate_time(run.trainer)] if args.run.plan else []
        _tell(run.trainer, describe_plan(run.trainer, *notes))
    except Exception as error:
        if args.training.log_level == "debug" and not isinstance(error, PruningError):
            raise
        fail(error)
    try:
        return 0 if args.run.plan else _train_alone(run, argv)
    except PruningError as error:
        fail(error)


def _fit(run: Run, budget: str) -> str:
    """Set the epochs of a run to what there is time for, or to what there was when it started; tells which."""
    checkpoint = run.args.training.resume_from_checkpoint
    if checkpoint is None or (epochs := epochs_of(checkpoint)) is None:
        return fit_to_budget(run.trainer, budget, run.args.most_dense)
    run.args.training.num_train_epochs = epochs
    run.trainer.pruning = with_dense_part(run.trainer.pruning, epochs, run.args.most_dense)
    return f"Budget: {epochs:g} epochs, as was chosen for {budget} when the run started."


def _train_alone(run: Run, argv: list[str]) -> int:
    with run.trainer.alone():
        return _train(run, argv)


def _train(run: Run, argv: list[str]) -> int:
    args, trainer = run.args, run.trainer
    if not (args.run.overwrite or args.run.resume or args.training.resume_from_checkpoint):
        command = _command(trainer, without_resume(without_secrets(argv)))
        trainer.on_main(lambda: refuse_to_replace(args.training.output_dir, command))
    if args.run.overwrite and not args.training.resume_from_checkpoint:  # from which the new run would be resumed
        trainer.on_main(lambda: drop_checkpoints(Path(args.training.output_dir)))
    if name := args.repo_id:  # what fails, fails now
        options = {"private": not args.run.hub_public, "packed": args.run.packed}
        args.repo_id = trainer.on_main(lambda: create_repository(name, **options))
    checkpoint = args.training.resume_from_checkpoint
    if checkpoint or args.run.resume:
        _tell(
            trainer,
            f"\nResuming from {checkpoint}" if checkpoint else "\nNo checkpoint yet: starting from the beginning",
        )
    trainer.train(resume_from_checkpoint=checkpoint)
    if run.stop.stopped:
        _tell(trainer, _how_to_resume(trainer, argv))
        return INTERRUPTED
    return _finish(run, argv)


def _finish(run: Run, argv: list[str]) -> int:
    trainer, args = run.trainer, run.args
    folder = run.save(_command(trainer, without_resume(without_secrets(argv))))
    dense = trainer.evaluate()["eval_accuracy"] if trainer.report is None else None
    if trainer.report is None:
        _tell(trainer, f"\nThe dense model, with an accuracy of {show(dense)}, is in {folder}")
        return 0
    files = f"The model, {REPORT_NAME} and {FIGURE_NAME} are in {folder}"
    _tell(trainer, f"\n{trainer.report.summary()}\n\n{files}")
    if args.repo_id and trainer.is_world_process_zero():
        return _push(folder, args.repo_id, args)
    return 0


def _push(folder: Path, repo_id: str, args: Arguments) -> int:
    options = {"private": not args.run.hub_public, "packed": args.run.packed}
    transformers.utils.logging.enable_progress_bar()
    try:
        url = push(folder, repo_id, **options)
    except KeyboardInterrupt:
        return stopped_pushing(folder, push_command(folder, repo_id, **options))
    sys.stdout.write(f"Pushed to {url}\n")
    return 0


def _how_to_resume(trainer: CyclicalPruningTrainer, argv: list[str]) -> str:
    stopped = f"\nStopped after update {trainer.state.global_step} of {trainer.state.max_steps}."
    if trainer.args.save_only_model:
        return f"{stopped} It cannot be resumed, as save_only_model was asked for."
    return f"{stopped} To resume:\n  {_command(trainer, [*without_resume(without_secrets(argv)), '--resume', 'auto'])}"


def _command(trainer: CyclicalPruningTrainer, argv: list[str]) -> str:
    n = str(trainer.args.world_size)
    command = ["hf-cyclical", "prune"]
    if trainer.is_fsdp_enabled:
        fsdp = ["--use_fsdp", "--fsdp_version", "2", "--num_processes", n]
        command = ["accelerate", "launch", *fsdp, "-m", "hf_cyclical", "prune"]
    elif trainer.args.world_size > 1:
        command = ["torchrun", "--nproc_per_node", n, "-m", "hf_cyclical", "prune"]
    return shlex.join([*command, *argv])


def _tell(trainer: CyclicalPruningTrainer, text: str) -> None:
    if trainer.is_world_process_zero():
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
