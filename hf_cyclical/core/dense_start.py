"""The dense training that a run may start with, before its first cycle."""

from dataclasses import dataclass
from typing import Annotated

from .settings import number, refuse, says, whole


@dataclass(frozen=True, kw_only=True)
class DenseStart:
    """How long a run is dense at first."""

    dense_epochs: Annotated[float, number("[0, inf)", "use 0 to prune from the start")] = says(
        "Epochs of dense training before the first cycle, out of num_train_epochs (appendix: from scratch).", 0.0
    )
    dense_updates: Annotated[int, whole(0, "use 0 to prune from the start")] = says(
        "The same in optimizer updates, out of max_steps. Give one of the two.", 0
    )

    @property
    def dense_by(self) -> str:
        """The one of the two that is given; empty if none is."""
        return "dense_epochs" if self.dense_epochs else "dense_updates" if self.dense_updates else ""

    def updates_before(self, updates: int, epochs: float | None) -> int:
        """The dense ones of a run of so many updates and epochs.

        Raises:
            PruningError: If nothing is left to prune in, or if the run is not counted in epochs and they are.
        """
        dense = self.dense_updates or 0
        if self.dense_epochs:
            if epochs is None:
                remedy = "use dense_updates with max_steps"
                refuse("dense_epochs", self.dense_epochs, "needs a run counted in epochs", remedy)
            dense = round(updates * self.dense_epochs / epochs) if epochs > 0 else updates
        if dense and dense >= updates:
            of = f"{epochs:g} epochs" if self.dense_epochs else f"{updates} updates"
            rule = f"leaves nothing of the run's {of} to prune in"
            refuse(self.dense_by, getattr(self, self.dense_by), rule, "lower it or train longer")
        return dense
