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
from transformers import set_seed

from hf_cyclical import CyclicalPruningTrainer, PruningError
from hf_cyclical.arguments import Arguments, parse_arguments
from hf_cyclical.callback import SetEpochCallback, StopOnSignalCallback
from hf_cyclical.command_line import fail, without_resume, without_secrets
from hf_cyclical.data import load_image_data
from hf_cyclical.hub import create_repository, push
from hf_cyclical.metrics import accuracy, rank_classes
from hf_cyclical.models import ImageModel, load_image_model, make_portable
from hf_cyclical.plan import describe_plan
from hf_cyclical.plots import FIGURE_NAME, plot_run
from hf_cyclical.report import REPORT_NAME, show, versions

INTERRUPTED = 130


def main(argv: list[str]) -> int:
    args = parse_arguments(argv, description=__doc__)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_cyclical").setLevel(logging.INFO if args.training.should_log else logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()  # those of loading and saving; the training's bar stays
    try:
        trainer, stop, loaded = build(args)
        print_on_main(trainer, describe_plan(trainer))
    except Exception as error:
        if args.training.log_level == "debug" and not isinstance(error, PruningError):
            raise
        fail(error)
    if args.run.plan:
        return 0
    try:
        if args.repo_id and trainer.is_world_process_zero():
            args.repo_id = create_repository(args.repo_id, private=not args.run.hub_public)  # what fails, fails now
        checkpoint = args.training.resume_from_checkpoint
        if checkpoint or args.run.resume:
            print_on_main(
                trainer, f"\nGoing on from {checkpoint}" if checkpoint else "\nNo checkpoint yet: starting anew"
            )
        trainer.train(resume_from_checkpoint=checkpoint)
        if stop.stopped:
            print_on_main(trainer, how_to_go_on(trainer, argv))
            return INTERRUPTED
        finish(trainer, loaded, args, argv)
    except PruningError as error:
        fail(error)
    return 0


def build(args: Arguments) -> tuple[CyclicalPruningTrainer, StopOnSignalCallback, ImageModel]:
    set_seed(args.training.seed)
    data = load_image_data(args.data, seed=args.training.seed)
    loaded = load_image_model(
        args.model.model_name_or_path, data.labels, image_size=data.image_size, from_scratch=args.model.from_scratch
    )
    train, evaluation = data.for_model(loaded.settings, seed=args.training.seed)
    stop = StopOnSignalCallback()
    trainer = CyclicalPruningTrainer(
        loaded.model,
        args.training,
        pruning=args.pruning,
        train_dataset=train,
        eval_dataset=evaluation,
        data_collator=data.collate,
        processing_class=loaded.processor,
        compute_metrics=accuracy,
        preprocess_logits_for_metrics=rank_classes,
        callbacks=[stop, SetEpochCallback(train)],
    )
    if args.pruning.prunes and not args.training.resume_from_checkpoint:
        # The dense model is the first row of the table: evaluated after a dense start, or else right away.
        args.training.eval_on_start |= trainer.plan().cycles[0].start == 0
    return trainer, stop, loaded


def finish(trainer: CyclicalPruningTrainer, loaded: ImageModel, args: Arguments, argv: list[str]) -> None:
    trainer.save_model()
    dense = trainer.evaluate()["eval_accuracy"] if trainer.report is None else None
    if not trainer.is_world_process_zero():
        return
    folder, report = Path(args.training.output_dir), trainer.report
    make_portable(folder)
    if report is None:
        print(f"\nThe dense model, with an accuracy of {show(dense)}, is in {folder}")
        return
    report.about = {
        "model": args.model.model_name_or_path,
        "base_model": loaded.base_model,
        "model_revision": loaded.revision,
        "dataset": args.data.dataset_name,
        "seed": args.training.seed,
        "processes": args.training.world_size,
        "command": command(trainer, without_resume(without_secrets(argv))),
        "versions": versions(),
    }
    report.save(folder)
    plot_run(report, folder / FIGURE_NAME)
    print(f"\n{report.summary()}\n\nThe model, {REPORT_NAME} and {FIGURE_NAME} are in {folder}", flush=True)
    if args.repo_id:
        transformers.utils.logging.enable_progress_bar()
        url = push(folder, args.repo_id, private=not args.run.hub_public, packed=args.run.packed)
        print(f"Pushed to {url}")


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
    sys.exit(main(sys.argv[1:]))
