"""Spans of the forward from the module structure.

A run of a module's operations is a piece if its size is suitable. It is divided into the runs of its children if it is
large or contains repeated modules.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby, pairwise

import msgspec
from msgspec.structs import replace

from ..capture.captured import Captured
from .cuts import LARGE, SMALL, TARGET, Costs, cut

_LISTS = ("ModuleList", "ModuleDict")  # modules that run nothing themselves


class ModuleSpan(msgspec.Struct, frozen=True):
    """A span [start, stop) of the forward.

    Attributes:
        start: First operation.
        stop: One past the last operation.
        path: The module that runs the span.
        own: Whether the span is the whole run of that module, so that the module's path can name it.
        cut: Whether a cut of the graph created it. Such spans are not joined again.
        pieces: Contents of a composite.
    """

    start: int
    stop: int
    path: str
    own: bool
    cut: bool = False
    pieces: tuple[ModuleSpan, ...] = ()


class Divider:
    """Divides spans of a captured step."""

    def __init__(self, captured: Captured, costs_at: Costs) -> None:
        self._captured, self._costs = captured, costs_at
        self._uses: dict[str, int] = {}  # class -> number of its modules that run operations
        self._extent: dict[str, tuple[int, int]] = {}  # module -> span of its operations
        for i in range(captured.graph.backward_start):
            for path in _ancestors(captured.modules[i]):
                self._extent[path] = (self._extent.get(path, (i, i))[0], i + 1)
        for path in self._extent:
            name = captured.classes.get(path)
            if name is not None:
                self._uses[name] = self._uses.get(name, 0) + 1

    def divide(self, start: int, stop: int, path: str) -> list[ModuleSpan]:
        """Return the pieces of a span whose operations all belong to the module `path` or to modules below it."""
        runs = self._runs(start, stop, path)
        if len(runs) == 1 and runs[0].path != path:
            inner = self.divide(start, stop, runs[0].path)
            single = len(inner) == 1 and inner[0].own and not inner[0].pieces
            return [replace(inner[0], path=path)] if single and self._whole(start, stop, path) else inner
        if all(run.path == path for run in runs):
            return self._by_graph(start, stop, path)
        if calls := self._calls(start, stop, path):
            pieces = [self.divide(a, b, path) for a, b in calls]
            return [replace(p, cut=True) for call in pieces for p in call]
        if self._size(start, stop) <= LARGE and not self._repeats(start, stop, path):
            return [ModuleSpan(start, stop, path, True)]
        return self._join([piece for run in runs for piece in self._child(run, path)], path)

    def _whole(self, start: int, stop: int, path: str) -> bool:
        """Return whether the span is everything that a module does, and the module is not only a list."""
        return self._extent.get(path) == (start, stop) and self._captured.classes.get(path) not in (None, *_LISTS)

    def _child(self, run: ModuleSpan, path: str) -> list[ModuleSpan]:
        if run.path == path:
            return [run] if self._size(run.start, run.stop) <= LARGE else self._by_graph(run.start, run.stop, path)
        pieces = self.divide(run.start, run.stop, run.path)
        name = self._captured.classes.get(run.path, "")
        if len(pieces) > 1 and self._uses.get(name, 0) > 1 and not self._repeats(run.start, run.stop, run.path):
            return [ModuleSpan(run.start, run.stop, run.path, True, pieces=tuple(pieces))]
        return pieces

    def _runs(self, start: int, stop: int, path: str) -> list[ModuleSpan]:
        """Return longest runs of operations under one child of `path`; operations of `path` itself form separate
        runs."""
        depth = len(path.split(".")) if path else 0
        runs: list[ModuleSpan] = []
        for i in range(start, stop):
            child = ".".join(self._captured.modules[i].split(".")[: depth + 1])
            if runs and runs[-1].path == child:
                runs[-1] = ModuleSpan(runs[-1].start, i + 1, child, child != path)
            else:
                runs.append(ModuleSpan(i, i + 1, child, child != path))
        return runs

    def _repeats(self, start: int, stop: int, path: str) -> bool:
        """Return whether the span contains a stack of modules of one class, each large enough for a leaf.

        A stack is two members of a list (`layers.0`, `layers.1`), three modules of any names, or two calls of a module.
        """
        members: dict[str, set[str]] = {}
        if self._collect(start, stop, path, members):
            return True
        return any(len(paths) >= 3 or len([p for p in paths if _numbered(p)]) >= 2 for paths in members.values())

    def _collect(self, start: int, stop: int, path: str, members: dict[str, set[str]]) -> bool:
        """Collect the modules of a span by class. Return True if a module is called several times in a row."""
        for run in self._runs(start, stop, path):
            size = self._size(run.start, run.stop)
            if run.path == path or size < SMALL:
                continue
            name = self._captured.classes.get(run.path, "")
            if name and (size >= TARGET // 2 or _numbered(run.path)):
                members.setdefault(name, set()).add(run.path)
            if self._calls(run.start, run.stop, run.path) or self._collect(run.start, run.stop, run.path, members):
                return True
        return False

    def _calls(self, start: int, stop: int, path: str) -> list[tuple[int, int]]:
        """Return the calls of a module that runs several times in a row: spans over the same modules in the same
        order."""
        runs, modules = self._runs(start, stop, path), self._captured.modules
        for count in range(2, len(runs) // 2 + 1):
            if len(runs) % count or [r.path for r in runs] != [r.path for r in runs[:count]] * (len(runs) // count):
                continue
            spans = list(pairwise([*(run.start for run in runs[::count]), stop]))
            same = len({tuple(module for module, _ in groupby(modules[a:b])) for a, b in spans}) == 1
            if same and self._size(*spans[0]) >= SMALL:
                return spans
        return []

    def _by_graph(self, start: int, stop: int, path: str) -> list[ModuleSpan]:
        spans = cut(self._captured.graph, self._costs, start, stop)
        return [ModuleSpan(a, b, path, len(spans) == 1, len(spans) > 1) for a, b in spans]

    def _join(self, pieces: list[ModuleSpan], path: str) -> list[ModuleSpan]:
        """Join the pieces between independent blocks up to the target size."""
        pieces = self._attach(pieces)
        uses = Counter(self._class(piece) for piece in pieces)
        joined: list[ModuleSpan] = []
        room = -1  # operations that the last piece may still take; -1: not even views
        for piece in pieces:
            size = self._size(piece.start, piece.stop)
            if self._independent(piece, uses):
                room = -1
                joined.append(piece)
            elif size <= room:
                room -= size
                joined[-1] = ModuleSpan(joined[-1].start, piece.stop, path, False)
            else:
                room = max(0, TARGET - size)
                joined.append(piece)
        return self._absorb(joined, uses)

    def _absorb(self, pieces: list[ModuleSpan], uses: Counter[str]) -> list[ModuleSpan]:
        """Add a small piece between two blocks (a pooling, a concatenation) to the next one, unless that has equals."""
        signs = Counter(self._costs.signs[piece.start : piece.stop] for piece in pieces)
        done: list[ModuleSpan] = []
        for piece in pieces:
            loose = done[-1] if len(done) > 1 else None  # the first piece is not the rest of a block
            alone = signs[self._costs.signs[piece.start : piece.stop]] == 1 and not piece.pieces
            if loose is not None and alone and self._independent(piece, uses) and not self._independent(loose, uses):
                size = self._size(loose.start, piece.stop)
                if self._size(loose.start, loose.stop) < SMALL and size <= LARGE:
                    done[-1] = replace(piece, start=loose.start)
                    continue
            done.append(piece)
        return done

    def _independent(self, piece: ModuleSpan, uses: Counter[str]) -> bool:
        """Return whether a piece is an independent block: it comes from a cut, or its module's class occurs several
        times."""
        if piece.pieces or piece.cut:
            return True
        inner = any(m != piece.path for m in self._captured.modules[piece.start : piece.stop])
        large = self._size(piece.start, piece.stop) >= TARGET // 2
        return uses[self._class(piece)] >= 2 and bool(self._class(piece)) and (inner or large or _numbered(piece.path))

    def _attach(self, pieces: list[ModuleSpan]) -> list[ModuleSpan]:
        """Add the loose operations after each module of a class (for example a residual addition) to that module's
        piece."""
        tails = [self._tail(pieces, k) for k in range(len(pieces))]
        votes: dict[tuple[str, tuple[int, ...]], int] = {}
        members: dict[str, int] = {}
        for piece, tail in zip(pieces, tails, strict=True):
            name = self._class(piece)
            if name:
                members[name] = members.get(name, 0) + 1
                votes[name, tail] = votes.get((name, tail), 0) + 1
        done: list[ModuleSpan] = []
        at = 0
        for piece in pieces:
            start = max(piece.start, at)
            if start >= piece.stop:
                continue
            name, stop = self._class(piece), piece.stop
            if name and not piece.pieces:
                stop += self._share(name, members, votes, piece.stop, pieces[-1].stop)
            done.append(
                ModuleSpan(start, stop, piece.path, piece.own and start == piece.start, piece.cut, piece.pieces)
            )
            at = stop
        return done

    def _share(
        self,
        name: str,
        members: dict[str, int],
        votes: dict[tuple[str, tuple[int, ...]], int],
        stop: int,
        end: int,
    ) -> int:
        """Return how many operations after `stop` a module of this class takes.

        These are the operations that follow all modules of the class, or all but one.
        """
        for (of, tail), count in votes.items():
            fits = tail == self._costs.signs[stop : min(stop + len(tail), end)]
            if of == name and tail and fits and members[name] >= 3 and count >= members[name] - 1:
                return len(tail)
        return 0

    def _tail(self, pieces: list[ModuleSpan], k: int) -> tuple[int, ...]:
        """Return the signs of the small loose piece between two pieces of suitable size."""
        if k + 2 >= len(pieces) or not self._class(pieces[k]) or not self._class(pieces[k + 2]):
            return ()
        loose = pieces[k + 1]
        small = not loose.own and self._size(loose.start, loose.stop) < SMALL
        return self._costs.signs[loose.start : loose.stop] if small else ()

    def _class(self, piece: ModuleSpan) -> str:
        good = piece.own and (piece.pieces or self._size(piece.start, piece.stop) >= SMALL)
        return self._captured.classes.get(piece.path, "") if good else ""

    def _size(self, start: int, stop: int) -> int:
        return self._costs.size(start, stop)


def _ancestors(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts) + 1)]


def _numbered(path: str) -> bool:
    """Return whether a module is a member of a list."""
    return path.rpartition(".")[2].isdigit()
