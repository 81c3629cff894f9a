"""Run a table of the paper: methods x sparsities x seeds, from the same dense weights and with the same epochs.

hf-cyclical compare                                  # every method on handwritten digits, no download
hf-cyclical compare --experiment list                # the experiments
hf-cyclical compare --experiment cifar10-resnet20 --scale 0.1 --model_name_or_path FOLDER --seeds 1 2 3
hf-cyclical compare --experiment digits-schedules --sparsities 0.95
hf-cyclical compare --updates 10000 --augment shift --weight_decay 1e-4 --delta_t 50 --sparsities 0.98
accelerate launch --multi_gpu --num_processes 8 -m hf_cyclical compare --experiment imagenet-resnet50
hf-cyclical compare --show FOLDER/results.json       # the table of runs that are done
hf-cyclical compare --add OTHER/results.json --output_dir FOLDER   # the runs of another folder or machine, too
hf-cyclical compare --experiment digits-schedules --add digits/results.json  # a table's rows that another one has

The same command resumes after an interruption; with more seeds, methods or sparsities it runs what is missing. Started
several times at once, on several GPUs or machines with one disk, the commands share the runs among them. Every other
argument that the experiment does not set itself is one of hf-cyclical prune, for all runs to which it applies:
hf-cyclical prune --help-all explains them. --dense_epochs is for the dense model that they start from, where it is
trained here.
"""

import sys
from collections.abc import Sequence

from hf_cyclical.core import PruningError
from hf_cyclical.paper import EXPERIMENTS

from .command_line import fail
from .compare_arguments import by_argument, parse
from .parsing import check_words


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    options, words = parse(list(sys.argv[1:] if argv is None else argv), __doc__)
    try:
        if options.show:
            from hf_cyclical.paper import load_results, table

            sys.stdout.write(f"{table(*load_results(options.show), by_cycle=options.by_cycle)}\n")
            return 0
        if options.add:
            from .compare_add import add

            sys.stdout.write(f"{add(options.add, options.output_dir, options.named, by_cycle=options.by_cycle)}\n")
            return 0
        more = by_argument(words, EXPERIMENTS[options.experiment])
        check_words(words)
        from .compare_runs import compare  # the Trainer takes seconds to import, and a mistyped word is told before

        return compare(options, words, more)
    except (PruningError, OSError) as error:  # of a full disk, too: what is finished stays
        fail(error)
