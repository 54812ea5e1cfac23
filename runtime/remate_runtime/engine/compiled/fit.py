"""Segments for a step whose predicted peak keeps the budget: as large as blocks, split where the worst moment is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from ...link.simulator import Account
from ..compiled_step import LinkedStep
from .artefacts import Artefacts
from .graphs import segment_graph
from .lives import Piece
from .memory import Planned, predict
from .segments import Segment, cut, segment

_log = logging.getLogger(__name__)


class Fitted(NamedTuple):
    """The segments of every section, and what they will hold."""

    sections: tuple[tuple[Planned, ...], ...]
    account: Account


def fit(step: LinkedStep, rows: Sequence[Sequence[Piece]], left: Sequence[int], artefacts: Artefacts) -> Fitted:
    """rows: the computations of every section. left: values whose storages the turn frees.

    While the prediction is over the budget, the segment of its worst moment is split, down to single operations, which are
    interpreted. It ends above the budget only where the worst moment is the interpreter's own.
    """
    planning = _Planning(step, artefacts)
    graph, linked = step.linked.graph, step.linked
    sections = [[planning.planned(one) for one in cut(graph, row, step.leaves)] for row in rows]
    while True:
        predicted = predict(linked, sections, left, artefacts)
        account = predicted.account
        place = predicted.where[account.peak_at] if account.peak > step.budget else None
        if place is None:
            break
        section, at = place
        if sections[section][at].function is None:
            break
        parts = planning.split(sections[section][at].segment)
        _log.info(
            "%d bytes predicted, the budget is %d: %s is split",
            account.peak,
            step.budget,
            planning.name(parts[0].segment),
        )
        sections[section][at : at + 1] = parts
    return Fitted(tuple(map(tuple, sections)), account)


class _Planning:
    def __init__(self, step: LinkedStep, artefacts: Artefacts) -> None:
        self._step, self._artefacts, self._graph = step, artefacts, step.linked.graph

    def name(self, one: Segment) -> str:
        ids = [self._graph.operations[piece.event.op].id for piece in one.pieces]
        return ids[0] if len(ids) == 1 else f"{ids[0]} … {ids[-1]}"

    def planned(self, one: Segment) -> Planned:
        if not one.compiled:
            return Planned(one, None)
        about = segment_graph(self._graph, one, self._step.operators)
        return Planned(one, self._artefacts.get(about, self.name(one)))

    def split(self, one: Segment) -> list[Planned]:
        """Two parts, cut where the least is alive; a single operation is interpreted instead."""
        pieces = one.pieces
        if len(pieces) == 1:
            return [Planned(one._replace(compiled=False), None)]
        levels = self._levels(one)
        margin = len(pieces) // 5
        inner = range(max(1, margin), min(len(pieces), len(pieces) - margin + 1))
        middle = len(pieces) / 2
        at = min(inner, key=lambda k: (levels[k - 1], abs(k - middle)))
        halves = segment(self._graph, pieces[:at], True), segment(self._graph, pieces[at:], True)
        return [self.planned(half) for half in halves]

    def _levels(self, one: Segment) -> list[int]:
        """Bytes alive behind each piece of what the segment makes or may free."""
        alive, levels = set(one.dead), []
        for piece in one.pieces:
            alive.update(v for v in self._graph.operations[piece.event.op].writes if v is not None)
            alive.difference_update(piece.dead)
            levels.append(sum(self._graph.nbytes(owner) for owner in alive))
        return levels
