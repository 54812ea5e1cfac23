"""Where a segment that exceeds the budget is cut: predicted from its graph, so that parts are compiled once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from remate_runtime.engine.compiled.compiled_engine import computations
from remate_runtime.engine.compiled.cuts import cut_places
from remate_runtime.engine.compiled.live_ranges import Piece
from remate_runtime.flat_step import Graph, expand
from remate_runtime.link import link

from ..small import data, seeded
from ..stepping import no_recomputes, schedule_of


class Ladder(nn.Module):
    """Equal layers, each of which leaves a value for backward."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.sum()


def forward_of(model: nn.Module, x: torch.Tensor) -> tuple[Graph, list[Piece]]:
    written = expand(schedule_of(seeded(model), (x,), recomputes=no_recomputes))
    rows, _ = computations(link(written.graph, written.recomputes))
    return written.graph, rows[0]


GRAPH, ROW = forward_of(Ladder(6), data(64, 8))


def interpreted_peak(pieces: list[Piece]) -> int:
    """The largest number of bytes of values at once, counted one by one."""
    alive, peak = set[int](), 0
    for piece in pieces:
        alive |= {value for value in GRAPH.operations[piece.event.op].writes if value is not None}
        peak = max(peak, sum(GRAPH.nbytes(owner) for owner in alive))
        alive.difference_update(piece.dead)
    return peak


def test_what_keeps_the_limit_is_cut_once_at_least() -> None:
    peak = interpreted_peak(ROW)
    places = cut_places(GRAPH, ROW, (), (), peak, peak)
    assert len(places) == 1  # it was over the budget, so it cannot stay whole
    assert 0 < places[0] < len(ROW)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_a_segment_that_holds_everything_is_cut_into_parts_that_fit(share: float) -> None:
    """Compiled, it holds all that it makes, as if Inductor freed nothing. Then so do its parts, on top of what is alive."""
    made = sum(GRAPH.nbytes(v) for piece in ROW for v in GRAPH.operations[piece.event.op].writes if v is not None)
    limit = interpreted_peak(ROW) + round(share * (made - interpreted_peak(ROW)))
    places = cut_places(GRAPH, ROW, (), (), made, limit)
    before = 0
    alive: set[int] = set()
    for start, end in zip([0, *places], [*places, len(ROW)], strict=True):
        before = sum(GRAPH.nbytes(owner) for owner in alive)
        inside = {v for p in ROW[start:end] for v in GRAPH.operations[p.event.op].writes if v is not None}
        assert before + sum(GRAPH.nbytes(owner) for owner in inside) <= limit
        alive = (alive | inside).difference(*(p.dead for p in ROW[start:end]))
    assert len(places) < len(ROW) - 1


def test_a_lower_limit_makes_smaller_parts() -> None:
    made = sum(GRAPH.nbytes(v) for piece in ROW for v in GRAPH.operations[piece.event.op].writes if v is not None)
    counts = [len(cut_places(GRAPH, ROW, (), (), made, limit)) for limit in (made, made * 3 // 4, made // 2, 1)]
    assert counts == sorted(counts)
    assert counts[-1] == len(ROW) - 1  # single operations: no cut keeps this


def test_borders_of_blocks_come_first() -> None:
    made = sum(GRAPH.nbytes(v) for piece in ROW for v in GRAPH.operations[piece.event.op].writes if v is not None)
    borders = set(range(1, len(ROW), 2))
    limit = interpreted_peak(ROW) + (made - interpreted_peak(ROW)) // 3
    assert {*cut_places(GRAPH, ROW, (), borders, made, limit)} <= borders
