"""The modules of a model by path."""

from __future__ import annotations

from typing import Any

from torch import nn


def modules_by_path(model: nn.Module) -> dict[str, nn.Module]:
    """Return all modules of a model. A module at several paths is there under each of them."""
    named: Any = model.named_modules(remove_duplicate=False)  # torch does not declare what it yields
    return dict(named)
