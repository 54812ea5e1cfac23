"""Segments for a step whose predicted peak keeps the budget: as large as shared functions allow, split where the worst
moment is.

Where blocks repeat, a segment is a block, so that equal ones share a function. Neighbours that share theirs with nobody
are one segment: that is no more to compile, and what meets at their border is fused. Deliveries of gradients cut
nothing apart where nobody waits for the first of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch

from ...flat_step.graph import Graph
from ...format.tensor_type import TensorType
from ...link.simulator import Account, simulate
from ..compiled_step import LinkedStep
from .artefacts import Artefacts
from .exact import exact
from .graphs import SegmentGraph, segment_graph
from .layouts import free_to_lie, held_outside
from .live_ranges import Piece
from .memory import Planned, predict
from .segments import Segment, cut, segment

_log = logging.getLogger(__name__)
_FEW = 0.05  # of the peak: gradients that are not worth a cut through what is fused


class FittedSegments(NamedTuple):
    """The segments of every section, and what they will hold. whole: bytes, the peak before any was split to keep the
    budget."""

    sections: tuple[tuple[Planned, ...], ...]
    account: Account
    whole: int


def fit(step: LinkedStep, rows: Sequence[Sequence[Piece]], left: Sequence[int], artefacts: Artefacts) -> FittedSegments:
    """rows: the computations of every section. left: values whose storages the forward/backward boundary frees.

    While the prediction is over the budget, the segment of its worst moment is split: where blocks meet, then within a
    block, down to single operations, which are interpreted. It ends above the budget only where the worst moment is the
    interpreter's own.
    """
    planning = _Planning(step, artefacts)
    held = min(step.budget, simulate(step.linked).peak)
    segments = planning.merged(together(step.linked.graph, rows, held))
    whole: int | None = None
    while True:
        sections = planning.planned(segments)
        predicted = predict(step.linked, sections, left, artefacts)
        account = predicted.account
        whole = account.peak if whole is None else whole
        place = predicted.where[account.peak_at] if account.peak > step.budget else None
        if place is None or not segments[place[0]][place[1]].compiled:
            return FittedSegments(tuple(map(tuple, sections)), account, whole)
        section, at = place
        worst = segments[section][at]
        _log.info("%d bytes predicted, the budget is %d: %s is split", account.peak, step.budget, planning.name(worst))
        segments[section][at : at + 1] = planning.split(worst)


def together(graph: Graph, rows: Sequence[Sequence[Piece]], peak: int) -> list[list[Piece]]:
    """All of backward before its first delivery: gradients that are held to the end of the step take as much whenever
    they are delivered. Only where they are few of the `peak`, for a loop that adds them up or uses them up in backward
    saves them by each delivery; and not where other processes train with this one, and reduce the first while backward
    goes on."""
    merged_rows = [list(row) for row in rows]
    gradients = sum(graph.nbytes(owner) for owner in {graph.root[value] for _, value in graph.gradients})
    reduced = torch.distributed.is_available() and torch.distributed.is_initialized()
    if graph.delivered == "retained" and gradients <= _FEW * peak and not reduced and len(merged_rows) > 2:
        merged_rows[1:] = [[piece for row in merged_rows[1:] for piece in row], *([] for _ in merged_rows[2:])]
    return merged_rows


class _Planning:
    def __init__(self, step: LinkedStep, artefacts: Artefacts) -> None:
        self._step, self._artefacts, self._graph = step, artefacts, step.linked.graph
        self._graphs: dict[tuple[Any, ...], SegmentGraph] = {}
        self._free = free_to_lie(self._graph)
        self._exact = exact(step.linked)

    def name(self, part: Segment) -> str:
        ids = [self._graph.operations[piece.event.op].id for piece in part.pieces]
        return ids[0] if len(ids) == 1 else f"{ids[0]} … {ids[-1]}"

    def merged(self, rows: Sequence[Sequence[Piece]]) -> list[list[Segment]]:
        """The segments of every row, before any is split."""
        segments = [cut(self._graph, row, self._step.leaves, self._exact) for row in rows]
        uses = Counter(self._about(part, {}, ()).key for row in segments for part in row if part.compiled)
        return [self._merged(row, uses) for row in segments]

    def _merged(self, row: Sequence[Segment], uses: Counter[str]) -> list[Segment]:
        together: list[Segment] = []
        for alone, group in groupby(
            row, key=lambda candidate: candidate.compiled and uses[self._about(candidate, {}, ()).key] == 1
        ):
            parts = list(group)
            if alone and len(parts) > 1:
                parts = [segment(self._graph, [piece for part in parts for piece in part.pieces], True)]
            together += parts
        return together

    def _about(self, part: Segment, layouts: Mapping[int, TensorType], free: Collection[int]) -> SegmentGraph:
        lie = tuple((owner, layouts[owner]) for owner in part.reads if owner in layouts)
        key = part, lie, tuple(owner for owner in part.makes if owner in free)
        if key not in self._graphs:
            self._graphs[key] = segment_graph(
                self._graph, part, self._step.operators, layouts, free, self._artefacts.device
            )
        return self._graphs[key]

    def planned(self, sections: list[list[Segment]]) -> list[list[Planned]]:
        """The segments with their functions. What does not compile is marked as interpreted in `sections`."""
        while True:
            attempt = self._attempt(sections)
            if attempt is not None:
                return attempt

    def _attempt(self, sections: list[list[Segment]]) -> list[list[Planned]] | None:
        free = self._free - held_outside(self._graph, (part for row in sections for part in row if not part.compiled))
        # What reads such tensors waits until it is known how those lie.
        alone = [part for row in sections for part in row if part.compiled and free.isdisjoint(part.reads)]
        self._artefacts.prepare(self._about(part, {}, free) for part in alone)
        layouts: dict[int, TensorType] = {}
        planned: list[list[Planned]] = []
        for row in sections:
            planned.append([])
            for at, part in enumerate(row):
                function = None
                if part.compiled:
                    got = self._artefacts.get(self._about(part, layouts, free), self.name(part))
                    if isinstance(got, str):
                        row[at : at + 1] = self._without(part, got)
                        return None
                    function = got
                    layouts.update(zip(part.makes, function.about.gives, strict=True))
                planned[-1].append(Planned(part, function))
        return planned

    def _without(self, refused: Segment, operator: str) -> list[Segment]:
        """The same with this operator interpreted; with all of it, where the operator is none of its own."""
        groups = groupby(refused.pieces, key=lambda piece: self._graph.operations[piece.event.op].op == operator)
        parts = [segment(self._graph, list(group), not blamed) for blamed, group in groups]
        return [refused._replace(compiled=False)] if all(part.compiled for part in parts) else parts

    def split(self, part: Segment) -> list[Segment]:
        """Two parts, cut where the least is alive; a single operation is interpreted instead."""
        pieces = part.pieces
        if len(pieces) == 1:
            return [part._replace(compiled=False)]
        levels = self._levels(part)
        at = min(self._places(pieces), key=lambda k: (levels[k - 1], abs(k - len(pieces) / 2)))
        return [segment(self._graph, pieces[:at], True), segment(self._graph, pieces[at:], True)]

    def _places(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """Where a segment may be cut: between its blocks, or else its operations, and rather not near its ends."""
        parts = cut(self._graph, pieces, self._step.leaves, self._exact)
        borders = list(accumulate(len(part.pieces) for part in parts))[:-1] or range(1, len(pieces))
        margin = len(pieces) // 5
        return [at for at in borders if margin <= at <= len(pieces) - margin] or borders

    def _levels(self, part: Segment) -> list[int]:
        """Bytes alive behind each piece of what the segment makes or may free."""
        alive, levels = set(part.dead), []
        for piece in part.pieces:
            alive.update(v for v in self._graph.operations[piece.event.op].writes if v is not None)
            alive.difference_update(piece.dead)
            levels.append(sum(self._graph.nbytes(owner) for owner in alive))
        return levels
