"""Lightning: `Trainer(..., callbacks=[RemateCallback(budget="60%", file="plan.json")])`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from ..training.trained import Trained, TrainingReport
from ..training.watch import Watch


class RemateCallback(Callback):
    """Plans the modules that `training_step` calls: the outermost ones in train mode.

    Each is planned at its second training call, because the first one identifies it. A module that cannot be planned
    trains by its own forward, with a warning. For further modules the file name contains their class.

    Args:
        budget: As in `remate.auto`.
        file: As in `remate.auto`.
        options: As in `remate.auto`.
    """

    def __init__(self, budget: str | int | None = None, file: str | Path | None = None, **options: Any) -> None:
        path = None if file is None else Path(file)
        self._trained = Trained({"on_refused": "original", "budget": budget, **options}, path, at_once=True)
        self._watch: Watch | None = None

    @property
    def reports(self) -> list[TrainingReport]:
        """Return the outcome for each module."""
        return self._trained.reports

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._watch = Watch(self._trained)
        self._watch.__enter__()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._watch is not None:
            self._watch.__exit__()
            self._watch = None
