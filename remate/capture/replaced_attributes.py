"""Functions in place of torch's during a trace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced_attributes(holder: Any, functions: Mapping[str, Any]) -> Generator[None]:
    """Replace attributes of a module or object in the `with` block.

    A module that is imported in the block takes a replaced function over where it imports it by name, as
    `torch.distributed._composable` does. It gets the usual one at the end, too.

    Args:
        holder: The module or object.
        functions: What replaces its attributes, by name.
    """
    usual = {name: getattr(holder, name) for name in functions}
    imported = set(sys.modules)
    for name, function in functions.items():
        setattr(holder, name, function)
    try:
        yield
    finally:
        for name, function in usual.items():
            setattr(holder, name, function)
        undone = {id(function): usual[name] for name, function in functions.items()}
        for name in set(sys.modules) - imported:
            attributes = getattr(sys.modules[name], "__dict__", {})
            for key, value in [*attributes.items()]:
                if id(value) in undone:
                    attributes[key] = undone[id(value)]


def says(answer: object) -> Callable[..., Any]:
    """Return a function that returns the same whatever it is given."""
    return lambda *given, **named: answer
