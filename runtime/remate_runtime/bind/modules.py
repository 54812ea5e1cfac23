"""The modules of a model by path."""

from __future__ import annotations

from typing import Any

from torch import nn


def modules_by_path(model: nn.Module, each_once: bool = False) -> dict[str, nn.Module]:
    """Return all modules of a model.

    Args:
        model: The model.
        each_once: Whether a module at several paths is there under the first of them only, instead of under each.
    """
    untyped: Any = model  # torch does not declare what `named_modules` yields
    return dict(untyped.named_modules(remove_duplicate=each_once))
