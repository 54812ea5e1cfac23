"""The assumptions of a schedule in words: live attributes, padding, and attributes that forward sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from remate_runtime.format import Model, attributes_of, range_text, sharded_text


def assumption_lines(model: Model, limit: int | None) -> Iterator[str]:
    """Yield a line for each kind of assumption.

    Args:
        model: The model of the schedule.
        limit: Most items in a line; None for all.
    """
    live = [
        f"{name} {range_text(live_range)} (planned at {live_range.planned!r})"
        for name, live_range in model.live.items()
    ]
    padded = [f"{name} with {number!r}" for name, number in model.fill.items()]
    if model.sharded is not None:
        yield f"sharded by FSDP2: {sharded_text(model.sharded)}"
    kinds = (
        ("live attributes", live),
        ("may be padded", padded),
        ("attributes that forward sets", attributes_set(model)),
    )
    for what, items in kinds:
        if items:
            yield f"{what}: {', '.join(items[:limit])}{_more(items, limit)}"


def split_lines(reordered: Sequence[str], rounded: Sequence[str], limit: int | None) -> Iterator[str]:
    """Yield lines about the numerical effects of splits.

    Args:
        reordered: Names of gradients that are summed in another order.
        rounded: Names of products of fewer rows, which a library can round differently.
        limit: Most gradients in a line; None for all.
    """
    summed = f"{', '.join(reordered[:limit])}{_more(reordered, limit)}" if reordered else "none"
    yield f"gradients summed in another order than in eager PyTorch: {summed}"
    if rounded:
        several = f"{', '.join(rounded[:3])}{f' and {len(rounded) - 3} more' if len(rounded) > 3 else ''}"
        yield f"from products of fewer rows, which a library can round differently: {several}"


def attributes_set(model: Model) -> list[str]:
    """Return the paths of the attributes that forward sets to outputs."""
    return list(attributes_of(model.outputs))


def _more(items: Sequence[str], limit: int | None) -> str:
    left = 0 if limit is None else len(items) - limit
    return f" and {left} more (--all)" if left > 0 else ""
