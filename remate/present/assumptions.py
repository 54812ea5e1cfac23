"""What a schedule reads from the model at every call, what it sets there, and what it may be padded with, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from remate_runtime.format import Model, range_text


def assumption_lines(model: Model, limit: int | None) -> Iterator[str]:
    """A line for each kind of assumption in the file. limit: most items in one line, None for all."""
    live = [
        f"{name} {range_text(live_range)} (planned at {live_range.planned!r})"
        for name, live_range in model.live.items()
    ]
    padded = [f"{name} with {number!r}" for name, number in model.fill.items()]
    kinds = (
        ("live attributes", live),
        ("may be padded", padded),
        ("attributes that forward sets", attributes_set(model)),
    )
    for what, items in kinds:
        if items:
            yield f"{what}: {', '.join(items[:limit])}{_more(items, limit)}"


def split_lines(reordered: Sequence[str], rounded: Sequence[str], limit: int | None) -> Iterator[str]:
    """What splits change of the results: gradients that are summed in another order, and what libraries may round
    otherwise for fewer rows. Names, both."""
    summed = f"{', '.join(reordered[:limit])}{_more(reordered, limit)}" if reordered else "none"
    yield f"gradients summed in another order than in eager PyTorch: {summed}"
    if rounded:
        several = f"{', '.join(rounded[:3])}{f' and {len(rounded) - 3} more' if len(rounded) > 3 else ''}"
        yield f"from products of fewer rows, which a library may round otherwise: {several}"


def attributes_set(model: Model) -> list[str]:
    """Paths of the attributes that forward sets to outputs."""
    outputs = model.outputs
    return list(outputs["attributes"]) if isinstance(outputs, dict) and "returns" in outputs else []


def _more(items: Sequence[str], limit: int | None) -> str:
    left = 0 if limit is None else len(items) - limit
    return f" and {left} more (--all)" if left > 0 else ""
