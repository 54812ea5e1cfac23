"""The sizes that a schedule leaves open, requested again: `dims` of `remate.plan` from a file."""

from __future__ import annotations

from typing import Any

from remate_runtime.format import Dimension, Schedule, open_axes

from .samples import range_text


def requested_again(schedule: Schedule, positional: list[str]) -> Any:
    """The value of `dims` for `remate.plan` that leaves the same sizes of the same inputs open, over the same ranges.

    None if no sizes are open. positional: names of the positional arguments, in order.
    """
    model = schedule.model
    if not model.dims:
        return None
    arguments = dict(zip(positional, model.inputs.get("args", ()), strict=False)) | model.inputs.get("kwargs", {})
    return {name: _spec(tree, model.dims) for name, tree in arguments.items()} | model.limits


def _spec(tree: Any, dims: dict[str, Dimension]) -> Any:
    if "tensor" in tree:
        named = open_axes(tree["tensor"], dims).items()
        return {axis: range_text(name, dims[name].min, dims[name].max, dims[name].multiple) for axis, name in named}
    for kind in ("tuple", "list"):
        if kind in tree:
            return [_spec(child, dims) for child in tree[kind]]
    below = tree.get("dict", tree.get("fields"))
    return None if below is None else {key: _spec(child, dims) for key, child in below.items()}
