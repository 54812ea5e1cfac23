"""Chooses the segments of a step so that its predicted peak keeps the budget.

If blocks repeat, each is a segment, so that equal blocks share a function. Neighbours that share their functions with
no other segment are merged: this costs no compile time and fuses operations at their border. Deliveries of gradients
cut backward only if something reads the first gradients before the step ends. A segment that exceeds the budget is
split.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch

from ...flat_step.graph import Graph
from ...format.tensor_type import TensorType
from ...link.simulator import Account, simulate
from ..compiled_step import LinkedStep
from .artefacts import Artefacts
from .calls import Interpretation
from .cuts import cut_places
from .exact import exact
from .graphs import SegmentGraph, segment_graph
from .layouts import channels_last, free_layouts, held_outside
from .live_ranges import Piece
from .memory import Planned, predict
from .segments import Segment, cut, segment

_log = logging.getLogger(__name__)
_FEW = 0.05  # gradients below this share of the peak are not worth a cut


class FittedSegments(NamedTuple):
    """The segments of a step.

    Attributes:
        sections: The segments of each section.
        account: The predicted memory.
        whole: Peak in bytes before any segment was split to keep the budget.
    """

    sections: tuple[tuple[Planned, ...], ...]
    account: Account
    whole: int


def fit(step: LinkedStep, rows: Sequence[Sequence[Piece]], left: Sequence[int], artefacts: Artefacts) -> FittedSegments:
    """Choose the segments of a step.

    While the predicted peak exceeds the budget, the segment at the peak is split once, where `cuts` predicts that its
    parts keep the budget. A part that exceeds it nevertheless is interpreted. So each operation is compiled at most
    twice. The result exceeds the budget only if an interpreted operation does.

    Args:
        step: The step.
        rows: The computations of each section.
        left: Values whose storages the forward/backward boundary frees.
        artefacts: Functions compiled so far. This adds to them.
    """
    planning = _Planning(step, artefacts)
    held = min(step.budget, simulate(step.linked).peak)
    segments = planning.merged(together(step.linked.graph, rows, held))
    whole: int | None = None
    parts: set[Segment] = set()  # of split segments
    while True:
        sections = planning.planned(segments)
        predicted = predict(step.linked, sections, left, artefacts)
        account = predicted.account
        whole = account.peak if whole is None else whole
        place = predicted.where[account.peak_at] if account.peak > step.budget else None
        if place is None or not segments[place[0]][place[1]].compiled:
            fitted = FittedSegments(tuple(map(tuple, sections)), account, whole)
            return _with_faster(planning, fitted, step, left, artefacts)
        section, at = place
        worst = segments[section][at]
        _log.info("%d bytes predicted, the budget is %d: %s is split", account.peak, step.budget, planning.name(worst))
        excess = account.peak - step.budget
        split = [worst._replace(compiled=False)] if worst in parts else planning.split(sections[section][at], excess)
        parts.update(split)
        segments[section][at : at + 1] = split


def _with_faster(
    planning: _Planning, fitted: FittedSegments, step: LinkedStep, left: Sequence[int], artefacts: Artefacts
) -> FittedSegments:
    """Interpret the segments that are faster so, as far as the step keeps the budget."""
    slower, limit = planning.slower(fitted.sections), max(step.budget, fitted.account.peak)
    while slower:
        rows = [[planned.segment for planned in section] for section in fitted.sections]
        segments = [[part._replace(compiled=part.compiled and part not in slower) for part in row] for row in rows]
        sections = planning.planned(segments)
        predicted = predict(step.linked, sections, left, artefacts)
        account = predicted.account
        if account.peak <= limit:
            _log.info("%d segments are faster where they are interpreted", len(slower))
            changed = FittedSegments(tuple(map(tuple, sections)), account, fitted.whole)
            return _with_faster(planning, changed, step, left, artefacts)
        place = predicted.where[account.peak_at]
        worst = None if place is None else segments[place[0]][place[1]]._replace(compiled=True)
        if worst not in slower:
            break
        slower.discard(worst)
    return fitted


def together(graph: Graph, rows: Sequence[Sequence[Piece]], peak: int) -> list[list[Piece]]:
    """Merge all of backward into one section before the first delivery, if that costs little memory.

    Retained gradients use the same memory whenever they are delivered. A loop that accumulates or consumes gradients in
    backward frees memory at each delivery, so they are merged only if gradients are a small share of the peak.
    Distributed training reduces the first gradients while backward continues, so nothing is merged there.

    Args:
        graph: The step.
        rows: The computations of each section.
        peak: Bytes of the step's peak.
    """
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
        self._free = free_layouts(self._graph)
        self._images = channels_last(self._graph, self._free) if artefacts.device.type == "cpu" else {}
        self._exact = exact(step.linked)

    def name(self, part: Segment) -> str:
        ids = [self._graph.operations[piece.event.op].id for piece in part.pieces]
        return ids[0] if len(ids) == 1 else f"{ids[0]} … {ids[-1]}"

    def merged(self, rows: Sequence[Sequence[Piece]]) -> list[list[Segment]]:
        """Return the segments of every section before any is split."""
        segments = [cut(self._graph, row, self._step.leaves, self._exact) for row in rows]
        uses = Counter(self._about(part, {}, ()).key for row in segments for part in row if part.compiled)
        return [self._merged(row, uses) for row in segments]

    def _merged(self, row: Sequence[Segment], uses: Counter[str]) -> list[Segment]:
        merged: list[Segment] = []
        for alone, group in groupby(
            row, key=lambda candidate: candidate.compiled and uses[self._about(candidate, {}, ()).key] == 1
        ):
            parts = list(group)
            if alone and len(parts) > 1:
                parts = [segment(self._graph, [piece for part in parts for piece in part.pieces], True)]
            merged += parts
        return merged

    def _about(self, part: Segment, layouts: Mapping[int, TensorType], free: Collection[int]) -> SegmentGraph:
        types = tuple((owner, layouts[owner]) for owner in part.reads if owner in layouts)
        key = part, types, tuple(owner for owner in part.makes if owner in free)
        if key not in self._graphs:
            images = {owner: kind for owner, kind in self._images.items() if owner in free}
            chosen, device = [owner for owner in free if owner not in images], self._artefacts.device
            self._graphs[key] = segment_graph(self._graph, part, self._step.operators, layouts, chosen, device, images)
        return self._graphs[key]

    def planned(self, sections: list[list[Segment]]) -> list[list[Planned]]:
        """Return the segments with their functions. Marks segments that do not compile as interpreted in `sections`."""
        while True:
            attempt = self._attempt(sections)
            if attempt is not None:
                return attempt

    def _attempt(self, sections: list[list[Segment]]) -> list[list[Planned]] | None:
        free = self._free - held_outside(self._graph, (part for row in sections for part in row if not part.compiled))
        layouts = {owner: kind for owner, kind in self._images.items() if owner in free}
        # Segments that read tensors whose layout Inductor chooses are compiled later, when the layouts are known.
        unknown = free.difference(layouts)
        independent = [part for row in sections for part in row if part.compiled and unknown.isdisjoint(part.reads)]
        self._artefacts.prepare(self._about(part, layouts, free) for part in independent)
        planned: list[list[Planned]] = []
        for row in sections:
            planned.append([])
            for at, part in enumerate(row):
                function = None
                if part.compiled:
                    compiled = self._artefacts.get(self._about(part, layouts, free), self.name(part))
                    if isinstance(compiled, str):
                        row[at : at + 1] = self._without(part, compiled)
                        return None
                    function = compiled
                    layouts.update(zip(part.makes, function.about.output_types, strict=True))
                planned[-1].append(Planned(part, function))
        return planned

    def _without(self, refused: Segment, operator: str) -> list[Segment]:
        """Return the segment with this operator interpreted; with all of it interpreted if it does not contain the
        operator."""
        groups = groupby(refused.pieces, key=lambda piece: self._graph.operations[piece.event.op].op == operator)
        parts = [segment(self._graph, list(group), not blamed) for blamed, group in groups]
        return [refused._replace(compiled=False)] if all(part.compiled for part in parts) else parts

    def slower(self, sections: Iterable[Iterable[Planned]]) -> set[Segment]:
        """Return the compiled segments that are faster where they are interpreted."""
        interpretation = None
        slower: set[Segment] = set()
        for segment_, function in (planned for row in sections for planned in row):
            if function is None:
                continue
            if interpretation is None:
                step, artefacts = self._step, self._artefacts
                interpretation = Interpretation(self._graph, step.operators, artefacts.device, artefacts.constants)
            if self._artefacts.prefers_interpreter(function, interpretation.of(segment_)):
                slower.add(segment_)
        return slower

    def split(self, planned: Planned, excess: int) -> list[Segment]:
        """Split a compiled segment into parts that are predicted to hold less. A single operation is interpreted.

        Args:
            planned: The segment.
            excess: Bytes by which it exceeds the budget.
        """
        part, function = planned
        if function is None or len(part.pieces) == 1:
            return [part._replace(compiled=False)]
        owned = frozenset(at for at, owner in enumerate(part.reads) if owner in set(part.dead))
        peak = self._artefacts.held(function, owned).peak
        borders = accumulate(
            len(inner.pieces) for inner in cut(self._graph, part.pieces, self._step.leaves, self._exact)
        )
        places = cut_places(self._graph, part.pieces, part.dead, {*borders}, peak, peak - excess)
        starts, ends = [0, *places], [*places, len(part.pieces)]
        return [segment(self._graph, part.pieces[a:b], True) for a, b in zip(starts, ends, strict=True)]
