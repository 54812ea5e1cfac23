"""A chart of samples per second over the batch size, with and without recomputation."""

from __future__ import annotations

from collections.abc import Sequence

from .plane import BLUE, INK, RED, Plane, round_numbers

Rate = tuple[int, float]  # size, samples in a second


def fit_plot(
    name: str, dim: str, cost: str, kept: Sequence[Rate], recompute: Sequence[Rate], ideal: Sequence[Rate]
) -> str:
    """Return the chart as SVG.

    Args:
        name: The schedule's name.
        dim: The name of the batch size.
        cost: The kind of costs.
        kept: Rates of the sizes that fit without recomputation.
        recompute: Rates of the sizes that fit with recomputation.
        ideal: Rates without recomputation on a device of unlimited memory.
    """
    every = [*kept, *recompute, *ideal]
    right, top = (1.05 * max([1.0, *(point[at] for point in every)]) for at in (0, 1))
    plane = Plane((0, right), (0, top))
    plane.line(ideal, INK, "without recomputation, on a larger device", dash="4 2")
    plane.line(kept, BLUE, "without recomputation", dots=3.5)
    if recompute:
        plane.line([*kept[-1:], *recompute], RED, "with recomputation", dots=3.5)
    best = max([*kept, *recompute], key=lambda point: (point[1], -point[0]))
    plane.dot(best, INK, f"fastest: {dim}={best[0]}")
    return plane.svg(
        f"{name}: training on one device",
        (f"size of the batch, {dim}", f"samples in a second ({cost} costs)"),
        (round_numbers(right, 8), round_numbers(top, 5)),
        (lambda at: f"{at:g}", lambda at: f"{at:,.0f}"),
    )
