"""Which of the Trainer's arguments a push does not allow; the rest of pushing is not imported for it."""

from transformers import TrainingArguments

from hf_cyclical.core import PruningError

from .errors import LOGIN

MAIN, PACKED = "main", "packed"  # branches


def refuse_settings(args: TrainingArguments) -> None:
    """Refuse what would push something else than the finished model, or write the token down.

    Raises:
        PruningError: If the arguments hold a token or, with `push_to_hub`, ask for pushes during training or to
            another branch.
    """
    if args.hub_token is not None:
        raise PruningError(f"hub_token would be written into training_args.bin, and others may read it: {LOGIN}")
    if args.push_to_hub and args.hub_strategy != "end":
        raise PruningError(
            f"hub_strategy {args.hub_strategy.value!r} pushes models on the way, which are not at the target, with all "
            "that is in output_dir: use hub_strategy 'end'"
        )
    if args.push_to_hub and args.hub_revision not in (None, MAIN):
        raise PruningError(f"hub_revision {args.hub_revision!r}: the model goes to the branch {MAIN}, leave it out")
