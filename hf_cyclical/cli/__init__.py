"""The command line: `hf-cyclical` and its commands, the arguments of a run, and one run from its arguments."""

from hf_cyclical import lazy_names

# The public names of this room, by the module that is imported when one of them is first asked for.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    arguments="Arguments",
    command_line="INTERRUPTED fail",
    dispatch="main",
    parsing="parse_arguments",
    run="Run",
)
