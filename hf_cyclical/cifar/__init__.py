"""Small networks for small images, registered in timm by importing this package."""

from . import resnet  # noqa: F401  registers the models
