"""Image data for the Trainer: from the Hub, from folders, or scikit-learn's digits."""

from hf_cyclical import lazy_names

# The public names of this room, by the module that is imported when one of them is first asked for.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    arguments="DataArguments",
    image_data="ImageData Split",
    images="Epochs SingleImages StreamedImages TensorImages ready_batch stack_images",
    loading="load_image_data",
    transforms="ImageSettings eval_transform",
)
