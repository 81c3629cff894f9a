"""Turn the weights of a public CIFAR ResNet into a folder that transformers and timm load.

python scripts/convert_cifar_resnet.py resnet20.safetensors resnet20 --model cifar_resnet20

The file has the names of the usual CIFAR ResNets in PyTorch, with shortcuts that have no parameters:

    in the file                                    here
    conv1.weight                                   the same
    bn1.*                                          the same
    layer{1,2,3}.{i}.conv{1,2}.weight              the same
    layer{1,2,3}.{i}.bn{1,2}.*                     the same
    linear.weight, linear.bias                     fc.weight, fc.bias
    (none)                                         *.num_batches_tracked, 0: nothing here reads it
"""

import argparse
import sys
from pathlib import Path

import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hf_cyclical import PruningError
from hf_cyclical.models import load_image_model, make_portable

CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def main(argv: list[str]) -> int:
    args = parse(argv)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        convert(args.file, args.folder, args.model, args.labels)
    except PruningError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{args.model} with the weights of {args.file} is in {args.folder}")
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="safetensors file with the weights")
    parser.add_argument("folder", type=Path, help="where to write config.json and model.safetensors")
    parser.add_argument("--model", required=True, choices=["cifar_resnet20", "cifar_resnet56"])
    parser.add_argument(
        "--labels", nargs="+", default=CIFAR10, help="names of the classes, in order (default: CIFAR-10)"
    )
    return parser.parse_args(argv)


def convert(file: Path, folder: Path, architecture: str, labels: list[str]) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PruningError(f"{folder} exists and is not an empty folder: choose another or remove it")
    weights = read_weights(file)
    model = load_image_model(architecture, labels, from_scratch=True).model
    fill(model.timm_model, weights, file)
    model.save_pretrained(folder)
    make_portable(folder)


def read_weights(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise PruningError(f"{file} is no file: give the safetensors file with the weights")
    try:
        weights = load_file(file)
    except SafetensorError as error:
        raise PruningError(f"{file} is no safetensors file or damaged, get it again: {error}") from error
    return {name.replace("linear.", "fc.", 1): tensor for name, tensor in weights.items()}


def fill(model: nn.Module, weights: dict[str, Tensor], file: Path) -> None:
    """Put the weights into the model, which must have the same names and shapes."""
    expected = {name: t for name, t in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    shapes = {name: tuple(t.shape) for name, t in expected.items()}
    found = {name: tuple(t.shape) for name, t in weights.items() if not name.endswith("num_batches_tracked")}
    for name in [*shapes, *found]:
        if shapes.get(name) != found.get(name):
            raise PruningError(
                f"{file} does not fit: {name} is {found.get(name, 'missing')} in it and {shapes.get(name, 'unknown')} "
                "in the model: check --model and --labels"
            )
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, strict=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
