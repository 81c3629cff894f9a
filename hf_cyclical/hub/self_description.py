"""A folder with a finished run describes itself: its sparsity record and its card."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_cyclical.formats import CONFIG, PROCESSORS, read_json, task_of
from hf_cyclical.reports import FIGURE_NAME, PruningReport, read_finished

from .card import CARD_NAME, render_card
from .measured_speed import read_speed
from .multiply_adds import count_in_folder
from .record import stamp


def describe(folder: str | Path) -> None:
    """Write sparsity.json and README.md into the folder of a finished run, and the marks of the record into its files.

    Raises:
        PruningError: If the run is not complete, or if its report is of other weights.
    """
    folder = Path(folder)
    report = read_finished(folder)
    card = card_of(folder, report, stamp(folder, report), speed=read_speed(folder))
    (folder / CARD_NAME).write_text(card, encoding="utf-8")


def card_of(folder: Path, report: PruningReport, metadata: dict[str, Any], **options: Any) -> str:
    """The card of a stamped folder; `options` as of `render_card`."""
    config = read_json(str(folder), folder / CONFIG)
    library = "transformers" if "model_type" in config else "timm"
    return render_card(
        report,
        metadata,
        figure=FIGURE_NAME if (folder / FIGURE_NAME).exists() else None,
        library=library,
        task=task_of(config),
        architecture=config.get("architecture"),
        # transformers makes one from the config of timm's models.
        processor=library == "timm" or any((folder / name).exists() for name in PROCESSORS),
        multiply_adds=asdict(counted) if (counted := count_in_folder(folder)) else None,
        **options,
    )
