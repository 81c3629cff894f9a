"""Prune an image classifier with any method of the paper "Cyclical Pruning for Sparse Neural Networks".

With a model or data and without --preset, what you leave open is set by a recommended recipe; --plan prints it with
its reasons.

hf-cyclical prune                          # a small ResNet on handwritten digits, no download
hf-cyclical prune --plan                   # what it would do
hf-cyclical prune --preset imagenet-resnet18 --target_sparsity 0.8 --output_dir resnet18-80
hf-cyclical prune --model_name_or_path microsoft/resnet-50 --dataset_name ethz/food101 ...
hf-cyclical prune settings.yaml --seed 1   # arguments from a file, some overridden
hf-cyclical prune ... --resume auto        # after an interruption: the same command resumes
hf-cyclical prune ... --push_to_hub --hub_model_id user/name     # private, unless --hub_public
accelerate launch --multi_gpu --num_processes 8 -m hf_cyclical prune ...
"""

import sys
from collections.abc import Sequence

from .parsing import parse_arguments, without_file


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = parse_arguments(words, description=__doc__)
    from .job import prune  # the Trainer takes seconds to import, and a mistyped word is told before

    return prune(args, without_file(words, args.named.get("file")))
