"""One file for each of several architectures: at many sizes loss, gradients and buffers are eager's to the last bit;
the peak is what is predicted with workspaces measured at that size, and the file's, whose workspaces are estimated
upwards, is no less; where `check` says that the budget holds, it does; and the file is hardly longer than one for a
single size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from remate_runtime.flat_step import Graph
from remate_runtime.operator_calls import live
from tools.bench.sized_models import CASES
from tools.bench.sizes import outcome

pytest.importorskip("transformers")
SIZES = 8
# Attention with a mask and rotary positions; multiples and images.
NAMES = ("llama", "unet")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("short_searches")]


@pytest.fixture(autouse=True)
def every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """At further sizes, the faults of types and of arguments that kernels trust are those of the step alone."""
    types, known_before = live.check_types, live.trusts

    def check_types(graph: Graph, where: Sequence[str], by_name: Any, distinct: Sequence[int] | None = None) -> Any:
        faults = types(graph, where, by_name, distinct)
        if distinct is not None:
            assert faults == types(graph, where, by_name)
            assert not any(known_before(graph, op, by_name[op.op], {}) for op in graph.operations)
        return faults

    monkeypatch.setattr(live, "check_types", check_types)


@pytest.mark.parametrize("name", NAMES)
def test_one_file_for_all_sizes(name: str) -> None:
    case = replace(CASES[name], at=CASES[name].at[:4])
    result = outcome(case, case.estimated, count=SIZES, cost="cpu", effort="quick", gap=0.05)
    solve, dims = result.schedule.solve, result.schedule.model.dims
    assert len(result.sizes) >= SIZES
    assert {tuple(dims[name].planned for name in case.names)} == {case.planned}
    for end in ("min", "max"):
        assert any(all(getattr(dims[name], end) == n for name, n in entry.sizes.items()) for entry in result.sizes)
    for entry in result.sizes:
        assert entry.off == 0, entry
        assert entry.measured == entry.exact <= entry.predicted, entry
        assert entry.measured <= solve.budget or not entry.within, entry
    within = [entry for entry in result.sizes if entry.within]
    assert 2 <= len(within) < len(result.sizes)  # of both kinds, so that the list of `check` says something
    assert any(entry.recomputes for entry in within)
    assert result.longer <= 1.1
