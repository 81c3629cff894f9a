"""A comparison: the runs of an experiment in one folder, the settings of each, and the table of those that are done."""

import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hf_cyclical.config import PruningConfig
from hf_cyclical.formats import write_text
from hf_cyclical.methods import applies
from hf_cyclical.reports import PruningReport, load_report

from .choice import save_chosen, wanted
from .experiments import EXPERIMENTS, Experiment, Variant, epochs_of
from .figures import plot_comparison
from .presets import PRESETS
from .result_table import table
from .results import RESULTS_NAME, Cell, Setting, read_folder, read_reports, report_path, save_results, write_report

DENSE_SEED = 0  # of the dense model that all runs of an experiment start from

Values = dict[str, list[Any]]
"""Arguments of `hf-cyclical prune` by name."""


@dataclass(frozen=True)
class Comparison:
    """An experiment in its folder.

    Attributes:
        setting: What its runs share.
        folder: Where their reports go.
        cells: The runs that are asked for.
        more: Arguments for all runs to which they apply; `dense_epochs` is for that of the dense model alone.
        trains_dense: Whether the dense model is one that is trained here.
    """

    setting: Setting
    folder: Path
    cells: tuple[Cell, ...]
    more: Mapping[str, list[str]]
    trains_dense: bool

    @property
    def experiment(self) -> Experiment:
        """What is compared."""
        return EXPERIMENTS[self.setting.experiment]

    @property
    def dense_folder(self) -> Path:
        """Where a dense model that is trained here goes."""
        return self.folder / f"{Path(self.setting.model).name}-dense"

    def pending(self) -> list[Cell]:
        """The runs that are not done; of a choice those that are to be tried next."""
        finished = read_reports(self.folder, self.cells)
        if self.experiment.chooses:
            return wanted(self.cells, finished)
        return [cell for cell in self.cells if cell not in finished]

    def settings(self, cell: Cell, model: str) -> Values:
        """The arguments of a run that starts from `model`."""
        variant = next(v for v in self.experiment.variants if v.label == cell.label)
        scale, updates = self.setting.scale, self.setting.updates
        values: Values = {name: [value] for name, value in variant.settings.items()}
        values |= (
            {"max_steps": [updates]}
            if updates
            else {"pruning_epochs": [f"{scale * epochs_of(self.experiment, variant):g}"]}
        )
        if "dense_epochs" in values:
            values["dense_epochs"] = [f"{scale * variant.settings['dense_epochs']:g}"]
        values |= self._per_run(variant)
        method = variant.settings["method"]
        values |= {n: given for n, given in self.more.items() if n != "dense_epochs" and applies(method, n)}
        values |= {"target_sparsity": [cell.sparsity], "seed": [cell.seed], "model_name_or_path": [model]}
        return {"preset": [self.experiment.preset], **values}

    def _per_run(self, variant: Variant) -> Values:
        """The settings that are for the full budget, for that of this comparison."""
        updates, full = self.setting.updates, self.experiment.updates
        part = updates / full if updates and full else self.setting.scale
        given = PRESETS[self.experiment.preset].settings | variant.settings
        return {name: [max(round(part * given[name]), 1)] for name in variant.per_run if part != 1}

    def dense_settings(self) -> Values:
        """The arguments of the training of the dense model."""
        epochs = self.more.get("dense_epochs", [PRESETS[self.experiment.preset].settings["dense_epochs"]])
        values: Values = {"preset": [self.experiment.preset], "target_sparsity": [0], "dense_epochs": [0]}
        values |= {"num_train_epochs": epochs, "seed": [DENSE_SEED]}
        values |= {name: [value] for name, value in self.experiment.dense.items()}
        of_pruning = {field.name for field in fields(PruningConfig)} | {"pruning_epochs"}
        return values | {name: given for name, given in self.more.items() if name not in of_pruning}

    def timing_settings(self, model: str, updates: int) -> Values:
        """The arguments of a few dense updates from `model`, which are timed and leave nothing."""
        values = self.dense_settings() | {"model_name_or_path": [model], "max_steps": [updates]}
        del values["num_train_epochs"]
        return values | {"eval_strategy": ["no"], "save_strategy": ["no"]}

    def store(self, cell: Cell, work: Path, *, keep_model: bool, more: Mapping[str, Any]) -> None:
        """Put the report of a run where finished ones are, with what `more` is known about it.

        Its model goes, unless it is wanted.
        """
        report = load_report(work)
        report = dataclasses.replace(report, about={**report.about, **more})
        if keep_model:
            write_report(report_path(self.folder, cell), report)
            drop_checkpoints(work)
        else:
            self.store_report(cell, report, work)

    def store_report(self, cell: Cell, report: PruningReport, work: Path) -> None:
        """The same without its model."""
        write_report(report_path(self.folder, cell), report)
        shutil.rmtree(work, ignore_errors=True)

    def show(self, *, by_cycle: bool = False) -> str:
        """The table of all that is finished in the folder; it is also left there, with a plot and the results."""
        results = read_folder(self.folder, self.setting)  # with those of other commands
        if not results:
            return "No run is finished."
        text = table(self.setting, results)
        save_results(self.folder / RESULTS_NAME, self.setting, results)
        write_text(self.folder / "table.md", text + "\n")
        if self.experiment.chooses:
            save_chosen(self.folder, self.setting, results)
        if len({cell.sparsity for cell in results}) > 1:
            for ending in ("png", "svg"):
                plot_comparison(results, self.folder / f"accuracy.{ending}")
        return table(self.setting, results, by_cycle=True) if by_cycle else text


def drop_checkpoints(folder: Path) -> Path:
    """Remove the checkpoints of a run, and give its folder."""
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    return folder
