"""Data sets by name: found on the Hub or in a folder, and prepared by `datasets`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from huggingface_hub import HfApi, constants, errors

from hf_cyclical.core import PruningError
from hf_cyclical.formats import optional

from .arguments import DataArguments

if TYPE_CHECKING:
    import datasets

Splits: TypeAlias = "datasets.DatasetDict | datasets.IterableDatasetDict"

_TIMEOUT = 10.0  # seconds


def load_splits(args: DataArguments) -> Splits:
    """The splits of a data set, downloaded and prepared if need be.

    Raises:
        PruningError: If there is no such data set, or if it cannot be loaded.
    """
    datasets = optional("datasets", "datasets")
    name, config = args.dataset_name, args.dataset_config_name
    try:
        with _asked_once(name):
            if args.streaming:
                return datasets.load_dataset(name, config, streaming=True)
            return _load_stored(name, config)
    except PruningError:
        raise
    except ConnectionError as error:
        raise PruningError(
            f"data set {name!r} is not a folder, and the Hub cannot be reached: check the name and the connection"
        ) from error
    except (OSError, RuntimeError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise not_loaded(name, error) from error


@contextmanager
def _asked_once(name: str) -> Iterator[None]:
    """Ask the Hub whether a data set is there, in a few seconds; inside, a Hub out of reach is not asked again.

    `datasets` would ask for several files, each of them many times, before it looks into its cache.
    """
    if Path(name).expanduser().exists():
        yield
        return
    try:
        HfApi().dataset_info(name, timeout=_TIMEOUT)
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        todo = "check the spelling, or log in with `hf auth login` if it is private"
        raise PruningError(f"data set {name!r} is neither a folder here nor on the Hub: {todo}") from error
    except (errors.OfflineModeIsEnabled, errors.HfHubHTTPError):  # the second: it answers, let datasets say what
        yield
    except (OSError, errors.HTTPError):
        with _offline():
            yield
    else:
        yield


@contextmanager
def _offline() -> Iterator[None]:
    places = [optional("datasets.config", "datasets"), constants]
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def not_loaded(name: str, error: Exception) -> PruningError:
    """The error for a data set that is there and cannot be used."""
    reason = " ".join(str(error.__cause__ or error).split()).rstrip(".")
    return PruningError(
        f"data set {name!r} cannot be loaded ({reason}): give a Hub id, or a folder of parquet files or of images"
    )


def _load_stored(name: str, config: str | None) -> Splits:
    """As load_dataset, which refuses data with an empty split, also where that split is not used."""
    datasets = optional("datasets", "datasets")
    builder = datasets.load_dataset_builder(name, config)
    builder.download_and_prepare()
    features = builder.info.features
    empty = datasets.Dataset.from_dict({column: [] for column in features}, features=features)
    return datasets.DatasetDict(
        {
            split: builder.as_dataset(split=split) if info.num_examples else empty
            for split, info in builder.info.splits.items()
        }
    )
