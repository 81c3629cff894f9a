"""The command line: arguments, one run from its arguments, and the commands of `python -m hf_cyclical`."""

from hf_cyclical import lazy_names

# The public names of this room, by the module that is imported when one of them is first asked for.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    arguments="Arguments parse_arguments",
    command_line="INTERRUPTED Parser fail stopped_pushing without_resume",
    commands="main",
    compare_arguments="by_argument parse",
    run="Run",
)
