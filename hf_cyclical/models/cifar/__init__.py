"""Small networks for small images, registered in timm by importing this package."""

from . import mobilenet, resnet, vgg  # noqa: F401  registers the models
