"""The newest versions of other packages that this one was tested with, and what is newer here."""

import importlib.metadata
import logging

from packaging.version import Version

__all__ = ["TESTED", "newer_than_tested", "warn_of_newer"]

logger = logging.getLogger(__name__)

# As in constraints.txt, which is not installed with the package; a test compares the two.
TESTED = {
    "accelerate": "1.15.0",
    "datasets": "5.2.0",
    "evaluate": "0.4.6",
    "filelock": "4.2.11",
    "huggingface_hub": "2.4.0",
    "jinja2": "3.1.6",
    "llvmlite": "0.50.0",
    "matplotlib": "3.11.2",
    "numpy": "2.4.6",
    "packaging": "26.3",
    "pillow": "13.0.0",
    "pyyaml": "6.0.3",
    "safetensors": "0.8.0",
    "scikit-learn": "1.9.1",
    "timm": "1.0.31",
    "torch": "2.15.0",
    "torchvision": "0.29.2",
    "transformers": "5.23.0",
}


def newer_than_tested() -> dict[str, str]:
    """Installed packages that are newer than in `TESTED`, and their versions; a build such as `+cpu` is not newer."""
    newer = {}
    for name, tested in TESTED.items():
        try:
            installed = Version(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:  # what an extra would install
            continue
        if Version(installed.public) > Version(tested):
            newer[name] = str(installed)
    return newer


def warn_of_newer() -> None:
    """Log one line that names what is newer than tested, if anything is."""
    if newer := newer_than_tested():
        named = ", ".join(f"{name} {version} (tested: {TESTED[name]})" for name, version in newer.items())
        remedy = " ".join(f"{name}=={TESTED[name]}" for name in newer)
        logger.warning("hf_cyclical was not tested with %s: if anything fails, pip install %s", named, remedy)
