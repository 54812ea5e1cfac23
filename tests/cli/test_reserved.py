"""`check` and `show` print the reserved memory of torch's allocator for steps on CUDA, and nothing for other devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from remate.schedule_tools.addresses import reserved
from remate.schedule_tools.analysis import open_schedule

Remate = Callable[..., Any]
ON_CUDA = str(Path(__file__).parents[2] / "schema" / "corpus" / "valid" / "devices.json")


def test_on_cuda(remate: Remate) -> None:
    """6 KiB are allocated. A segment of small blocks has 2 MiB, of which the step does not use 2 MiB - 6 KiB."""
    checked, shown = remate("check", ON_CUDA), remate("show", ON_CUDA)
    assert checked.status == shown.status == 0
    lines = [line.strip() for line in checked.out.splitlines()]
    assert (
        "reserved, by a model of PyTorch's allocator, 2.00 MiB: fragmentation 1.99 MiB, 34033.3% of the budget" in lines
    )
    assert "reserved with expandable segments, 2.00 MiB: fragmentation 1.99 MiB, 34033.3% of the budget" in lines
    rows = [line.split() for line in shown.out.splitlines()]
    assert [row[:8] for row in rows if row[:1] == ["reserved,"]] == [
        ["reserved,", "by", "a", "model", "2.00", "MiB", "2.00", "MiB"],
        ["reserved,", "expandable", "segments", "2.00", "MiB", "2.00", "MiB", "fragmentation"],
    ]
    assert "has not been compared with a GPU yet" in shown.out


def test_allocated_is_what_is_held() -> None:
    """Blocks of the small pool have the requested size, so allocated memory equals the peak."""
    opened = open_schedule(ON_CUDA)
    result = reserved(opened.linked)
    assert result is not None
    assert result.plain.allocated == result.expandable.allocated == opened.timeline.peak


def test_on_the_cpu(remate: Remate) -> None:
    assert reserved(open_schedule("mlp.json").linked) is None
    for command in ("check", "show"):
        assert "eserved" not in remate(command, "mlp.json").out
