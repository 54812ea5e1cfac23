"""Live inputs: numbers among the arguments of a call that a step reads at every call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from remate_runtime.bind import children, is_number, rebuild

from .signature import argument_names


def number_inputs(
    model: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, int | float]:
    """Return the numbers among the arguments of a call by name: `lam`, `weights.0`."""
    numbers: dict[str, int | float] = {}

    def note(name: str, value: object) -> object:
        if is_number(value):
            numbers[name] = value if isinstance(value, int) else float.__pos__(value)
        return value

    for name, value in [*zip(argument_names(model, len(args)), args, strict=True), *kwargs.items()]:
        _mapped(name, value, note)
    return numbers


def with_live_inputs(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], live: Mapping[str, object]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, object]]:
    """Return the arguments of a call with live numbers in place of inputs, and the live numbers of attributes.

    Args:
        model: The live model.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        live: Values of inputs by name, and of attributes by path.
    """
    attributes = dict(live)

    def value_of(name: str, value: object) -> object:
        return attributes.pop(name) if name in attributes and is_number(value) else value

    names = argument_names(model, len(args))
    positional = tuple(_mapped(name, value, value_of) for name, value in zip(names, args, strict=True))
    return positional, {name: _mapped(name, value, value_of) for name, value in kwargs.items()}, attributes


def _mapped(name: str, node: Any, leaf: Any) -> Any:
    """Return a node of the arguments with `leaf(name, value)` in place of its leaves. Containers without other leaves
    stay the objects that they are."""
    inner = None if isinstance(node, float) else children(node)
    if inner is None:
        return node if isinstance(node, torch.Tensor) else leaf(name, node)
    parts = {key: _mapped(f"{name}.{key}", part, leaf) for key, part in inner[1].items()}
    same = all(part is inner[1][key] for key, part in parts.items())
    return node if same else rebuild(node, parts)


def live_tree(model: torch.nn.Module, inputs: Mapping[str, Any], live: Collection[str]) -> dict[str, Any]:
    """Return the tree of a call's inputs in which the numbers with these names are live."""
    args: Sequence[object] = inputs.get("args", ())
    names = argument_names(model, len(args))
    positional = [_live(name, node, live) for name, node in zip(names, args, strict=True)]
    return {"args": positional, "kwargs": {name: _live(name, node, live) for name, node in inputs["kwargs"].items()}}


def _live(name: str, node: Any, live: Collection[str]) -> Any:
    if "literal" in node:
        return {"live": name} if name in live else node
    kind = next((kind for kind in ("tuple", "list", "dict", "fields") if kind in node), None)
    if kind is None:
        return node
    below = node[kind]
    if kind in ("tuple", "list"):
        return {kind: [_live(f"{name}.{at}", child, live) for at, child in enumerate(below)]}
    return {**node, kind: {key: _live(f"{name}.{key}", child, live) for key, child in below.items()}}
