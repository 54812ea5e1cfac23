"""Curves with fewer points."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remate_runtime.display import thin

_CURVES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10**9)), min_size=1, max_size=300)


@given(_CURVES, st.integers(1, 20))
def test_peaks_and_ends_stay(points: list[tuple[int, int]], buckets: int) -> None:
    now, times = 0, []
    for wait, _ in points:
        now += wait
        times.append(now)
    levels = [level for _, level in points]
    found_times, result = thin(times, levels, buckets)
    assert len(result) == len(found_times) <= max(4 * buckets, 1)
    assert (max(result), min(result)) == (max(levels), min(levels))
    assert (result[0], result[-1]) == (levels[0], levels[-1])
    assert found_times == sorted(found_times)
    assert set(zip(found_times, result, strict=True)) <= set(zip(times, levels, strict=True))
