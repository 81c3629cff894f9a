"""Prune an image classifier with any method of the paper "Cyclical Pruning for Sparse Neural Networks".

accelerate launch scripts/prune.py                            # a small ResNet on handwritten digits, no download
accelerate launch scripts/prune.py --plan                     # what it would do
accelerate launch scripts/prune.py --method gradual --target_sparsity 0.98 --output_dir gradual-98
accelerate launch scripts/prune.py settings.yaml --seed 1     # arguments from a file, some overridden
"""

import logging
import shlex
import sys
from pathlib import Path

import transformers
from transformers import set_seed

from hf_cyclical import CyclicalPruningTrainer, PruningError
from hf_cyclical.arguments import Arguments, fail, parse_arguments
from hf_cyclical.callback import StopOnSignalCallback
from hf_cyclical.data import load_image_data, ready_batch
from hf_cyclical.metrics import accuracy, keep_top1
from hf_cyclical.models import load_image_model
from hf_cyclical.plan import describe_plan
from hf_cyclical.plots import FIGURE_NAME, plot_run
from hf_cyclical.report import REPORT_NAME, versions

INTERRUPTED = 130


def main(argv: list[str]) -> int:
    args = parse_arguments(argv, description=__doc__)
    logging.basicConfig(level=logging.INFO if args.training.should_log else logging.WARNING, format="%(message)s")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()  # those of loading and saving; the training's bar stays
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    try:
        trainer, stop = build(args)
        print_on_main(trainer, describe_plan(trainer))
        if args.run.plan:
            return 0
        resume = args.training.resume_from_checkpoint
        args.training.eval_on_start = resume is None and trainer.plan().cycles[0].start == 0
        trainer.train(resume_from_checkpoint=resume)
    except PruningError as error:
        fail(error)
    if stop.stopped:
        print_on_main(trainer, how_to_go_on(trainer, argv))
        return INTERRUPTED
    finish(trainer, args, argv)
    return 0


def build(args: Arguments) -> tuple[CyclicalPruningTrainer, StopOnSignalCallback]:
    set_seed(args.training.seed)
    data = load_image_data(args.data.dataset_name)
    model = load_image_model(args.model.model_name_or_path, data.labels, image_size=data.train.image_size)
    stop = StopOnSignalCallback()
    trainer = CyclicalPruningTrainer(
        model,
        args.training,
        pruning=args.pruning,
        train_dataset=data.train.normalized_as(model.config),
        eval_dataset=data.eval.normalized_as(model.config),
        data_collator=ready_batch,
        compute_metrics=accuracy,
        preprocess_logits_for_metrics=keep_top1,
        callbacks=[stop],
    )
    return trainer, stop


def finish(trainer: CyclicalPruningTrainer, args: Arguments, argv: list[str]) -> None:
    trainer.save_model()
    if not trainer.is_world_process_zero() or trainer.report is None:
        return
    folder, report = Path(args.training.output_dir), trainer.report
    report.about = {
        "model": args.model.model_name_or_path,
        "dataset": args.data.dataset_name,
        "seed": args.training.seed,
        "command": shlex.join(["accelerate", "launch", "scripts/prune.py", *argv]),
        "versions": versions(),
    }
    report.save(folder)
    plot_run(report, folder / FIGURE_NAME)
    print(f"\n{report.summary()}\n\nThe model, {REPORT_NAME} and {FIGURE_NAME} are in {folder}")


def how_to_go_on(trainer: CyclicalPruningTrainer, argv: list[str]) -> str:
    checkpoint = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"
    command = shlex.join(
        ["accelerate", "launch", "scripts/prune.py", *argv, "--resume_from_checkpoint", str(checkpoint)]
    )
    return f"\nStopped after update {trainer.state.global_step} of {trainer.state.max_steps}. To go on:\n  {command}"


def print_on_main(trainer: CyclicalPruningTrainer, text: str) -> None:
    if trainer.is_world_process_zero():
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
