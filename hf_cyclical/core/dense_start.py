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

    def updates_before(self, updates: int, epochs: float | None) -> int:
        """The dense ones of a run of so many updates and epochs.

        Raises:
            PruningError: If nothing is left to prune in, or if the run is not counted in epochs and they are.
        """
        name = "dense_epochs" if self.dense_epochs else "dense_updates"
        dense = self.dense_updates or 0
        if self.dense_epochs:
            if epochs is None:
                refuse(name, self.dense_epochs, "needs a run counted in epochs", "use dense_updates with max_steps")
            dense = round(updates * self.dense_epochs / epochs) if epochs > 0 else updates
        if dense and dense >= updates:
            of = f"{epochs:g} epochs" if self.dense_epochs else f"{updates} updates"
            rule = f"leaves nothing of the run's {of} to prune in"
            refuse(name, getattr(self, name), rule, "lower it or train longer")
        return dense
