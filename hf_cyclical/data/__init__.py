"""Image data for the Trainer: from the Hub, from folders, or scikit-learn's digits."""

from .arguments import DataArguments
from .image_data import ImageData
from .images import SingleImages, StreamedImages, TensorImages, ready_batch, stack_images
from .loading import load_image_data
from .transforms import ImageSettings

__all__ = [
    "DataArguments",
    "ImageData",
    "ImageSettings",
    "SingleImages",
    "StreamedImages",
    "TensorImages",
    "load_image_data",
    "ready_batch",
    "stack_images",
]
