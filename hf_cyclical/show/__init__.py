"""A page to look at a job: its run, its layers, its masks, its predictions and its card."""

from hf_cyclical import lazy_names

# The public names of this room, by the module that is imported when one of them is first asked for.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    job="Job",
    predictions="Predictor",
    server="serve",
)
