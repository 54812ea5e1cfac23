"""Finds the numbers among the inputs that differ from those of the planned call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import torch

from ..errors import BindError
from .inputs import Accept, Inputs

_CPU = torch.device("cpu")


def changed_numbers(
    tree: Mapping[str, Any], forward: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, Any]
) -> dict[str, int | float]:
    """Return the numbers that `live=` of `remate.plan` might let a call change, by name.

    Args:
        tree: The recorded inputs.
        forward: The model's forward.
        args: Positional arguments of a call.
        kwargs: Its keyword arguments.
    """
    try:
        return dict(Inputs(tree, forward, ordered=False, leaf=_number).flatten(args, kwargs, _CPU))
    except BindError:
        return {}


def _number(node: Mapping[str, Any], label: str) -> Accept:
    """Return what collects the name and the value of a number that differs."""
    planned = node.get("literal")

    def run(argument: object, device: torch.device, pairs: list[Any]) -> None:
        if is_number(planned) and is_number(argument) and argument != planned:
            pairs.append((label, argument))

    return run


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number that can be live; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
