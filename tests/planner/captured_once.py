"""One capture of each step that several tests of a file plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from remate.api import plan


@pytest.fixture(scope="module")
def captured_once() -> Iterator[None]:
    """Plans of the same model and the same arguments share a capture. Not for tests that change a model in between."""
    usual, kept = plan.captured, dict[Any, Any]()

    def captured(model: Any, args: Any, kwargs: Any, *more: Any, **options: Any) -> Any:
        given = model, *args, *kwargs.values()
        key = (*map(id, given), *kwargs, repr(more), model.training, torch.is_autocast_enabled("cpu"))
        if key not in kept:
            kept[key] = given, usual(model, args, kwargs, *more, **options)
        return kept[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "captured", captured)
        yield
