"""Prune an image classifier with any method of the paper "Cyclical Pruning for Sparse Neural Networks".

accelerate launch scripts/prune.py                         # a small ResNet on handwritten digits, no download
accelerate launch scripts/prune.py --plan                  # what it would do
accelerate launch scripts/prune.py --preset list           # the paper's settings
accelerate launch scripts/prune.py --preset imagenet-resnet18 --target_sparsity 0.8 --output_dir resnet18-80
accelerate launch scripts/prune.py --model_name_or_path microsoft/resnet-50 --dataset_name ethz/food101 ...
accelerate launch scripts/prune.py settings.yaml --seed 1  # arguments from a file, some overridden
accelerate launch scripts/prune.py ... --resume auto       # after an interruption: the same command goes on
accelerate launch scripts/prune.py ... --push_to_hub --hub_model_id user/name   # private, unless --hub_public
"""

import logging
import shlex
import sys
from pathlib import Path

import transformers

from hf_cyclical import CyclicalPruningTrainer, PruningError
from hf_cyclical.cli import INTERRUPTED, Arguments, Run, fail, parse_arguments, stopped_pushing, without_resume
from hf_cyclical.core import leave_group
from hf_cyclical.formats import without_secrets
from hf_cyclical.hub import create_repository, push, push_command
from hf_cyclical.reports import FIGURE_NAME, REPORT_NAME, show
from hf_cyclical.training import describe_plan


def main(argv: list[str]) -> int:
    args = parse_arguments(argv, description=__doc__)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_cyclical").setLevel(logging.INFO if args.training.should_log else logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()  # those of loading and saving; the training's bar stays
    try:
        run = Run.build(args)
        trainer = run.trainer
        print_on_main(trainer, describe_plan(trainer))
    except Exception as error:
        if args.training.log_level == "debug" and not isinstance(error, PruningError):
            raise
        fail(error)
    if args.run.plan:
        return 0
    try:
        if name := args.repo_id:  # what fails, fails now
            options = {"private": not args.run.hub_public, "packed": args.run.packed}
            args.repo_id = trainer.on_main(lambda: create_repository(name, **options))
        checkpoint = args.training.resume_from_checkpoint
        if checkpoint or args.run.resume:
            print_on_main(
                trainer, f"\nGoing on from {checkpoint}" if checkpoint else "\nNo checkpoint yet: starting anew"
            )
        trainer.train(resume_from_checkpoint=checkpoint)
        if run.stop.stopped:
            print_on_main(trainer, how_to_go_on(trainer, argv))
            return INTERRUPTED
        return finish(run, argv)
    except PruningError as error:
        fail(error)


def finish(run: Run, argv: list[str]) -> int:
    trainer, args = run.trainer, run.args
    folder = run.save(command(trainer, without_resume(without_secrets(argv))))
    dense = trainer.evaluate()["eval_accuracy"] if trainer.report is None else None
    if not trainer.is_world_process_zero():
        return 0
    if trainer.report is None:
        print(f"\nThe dense model, with an accuracy of {show(dense)}, is in {folder}")
        return 0
    files = f"The model, {REPORT_NAME} and {FIGURE_NAME} are in {folder}"
    print(f"\n{trainer.report.summary()}\n\n{files}", flush=True)
    return push_folder(folder, args.repo_id, args) if args.repo_id else 0


def push_folder(folder: Path, repo_id: str, args: Arguments) -> int:
    options = {"private": not args.run.hub_public, "packed": args.run.packed}
    transformers.utils.logging.enable_progress_bar()
    try:
        url = push(folder, repo_id, **options)
    except KeyboardInterrupt:
        return stopped_pushing(folder, push_command(folder, repo_id, **options))
    print(f"Pushed to {url}")
    return 0


def how_to_go_on(trainer: CyclicalPruningTrainer, argv: list[str]) -> str:
    stopped = f"\nStopped after update {trainer.state.global_step} of {trainer.state.max_steps}."
    if trainer.args.save_only_model:
        return f"{stopped} There is nothing to go on from, as save_only_model was asked for."
    return f"{stopped} To go on:\n  {command(trainer, [*without_resume(without_secrets(argv)), '--resume', 'auto'])}"


def command(trainer: CyclicalPruningTrainer, argv: list[str]) -> str:
    n = str(trainer.args.world_size)
    launcher = ["accelerate", "launch"]
    if trainer.is_fsdp_enabled:
        launcher += ["--use_fsdp", "--fsdp_version", "2", "--num_processes", n]
    elif trainer.args.world_size > 1:
        launcher = ["torchrun", "--nproc_per_node", n]
    return shlex.join([*launcher, "scripts/prune.py", *argv])


def print_on_main(trainer: CyclicalPruningTrainer, text: str) -> None:
    if trainer.is_world_process_zero():
        print(text, flush=True)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    leave_group()
    sys.exit(code)
