"""Hugging Face Trainer: `Trainer(..., callbacks=[RemateCallback(budget="60%", file="plan.json")])`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..training import auto, is_taken_over


class RemateCallback(TrainerCallback):
    """Plans the first training call of the Trainer's model, and trains by the schedule afterwards.

    A model that cannot be planned trains by its own forward, with a warning.

    Args:
        budget: As in `remate.auto`.
        file: As in `remate.auto`.
        options: As in `remate.auto`.
    """

    def __init__(self, budget: str | int | None = None, file: str | Path | None = None, **options: Any) -> None:
        self._budget, self._file = budget, file
        self._options: dict[str, Any] = {"on_refused": "original", **options}

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Take over the model before the Trainer wraps its forward in autocast."""
        self._take(model)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Take over the model of a Trainer that got this callback by `add_callback`.

        Raises:
            CaptureError: The Trainer has wrapped the forward already.
        """
        self._take(model)

    def _take(self, model: Any) -> None:
        if model is not None and not is_taken_over(model):
            auto(model, self._budget, self._file, **self._options)
