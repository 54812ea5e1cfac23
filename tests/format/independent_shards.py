"""Memory of parameters that FSDP2 shards, for the second simulator: from `schema/README.md` alone, nothing of remate
imported.

It follows a rank event by event. Before an event, borders act one after the other, and each may be the peak.
"""

from __future__ import annotations

import re
from itertools import product
from math import prod
from typing import Any, NamedTuple

from .independent_step import SIZES, TABLES, Json, Step


class Delivered(NamedTuple):
    """A gradient that is delivered to a parameter. at: its delivery, as a number of an event."""

    source: str
    nbytes: int
    at: int


class Unit(NamedTuple):
    """A sharded module: bytes of its parameters, of the buffer of both directions, and of a rank's gradients."""

    whole: int
    buffer: int
    gradients: int
    shards: int
    kept: bool


def paths(folded: list[str]) -> list[str]:
    found: list[str] = []
    for text in folded:
        runs = [re.fullmatch(r"\[(\d+)-(\d+)\]", part) for part in text.split(".")]
        spelled = [
            [part] if run is None else [str(n) for n in range(int(run[1]), int(run[2]) + 1)]
            for part, run in zip(text.split("."), runs, strict=True)
        ]
        found += [".".join(path) for path in product(*spelled)]
    return found


class Shards:
    """The rank of a file with `sharded`. device: that of the file."""

    def __init__(self, step: Step, root: Any) -> None:
        self.step, self.root = step, root
        about = step.model["sharded"]
        self.paths = ["", *paths(about.get("modules", []))]
        kept = ["" if path == "" else path for path in about.get("kept", [])]
        self.kept = {*paths([path for path in kept if path]), *(path for path in kept if not path)}
        self.unit = {name: self._unit(name) for name in step.parameters}
        self.units = [self._sized(path, about["shards"]) for path in self.paths]

    def _unit(self, parameter: str) -> int:
        above = parameter.split(".")[:-1]
        for count in range(len(above), 0, -1):
            if ".".join(above[:count]) in self.paths[1:]:
                return self.paths.index(".".join(above[:count]))
        return 0

    def _sized(self, path: str, shards: int) -> Unit:
        step = TABLES["devices"][self.step.model["device"]]["allocation"]

        def up(nbytes: int) -> int:
            return -(-nbytes // step) * step

        sizes: dict[str, int] = {}
        for name, unit in self.unit.items():
            if self.paths[unit] == path:
                kind = self.step.types[name]
                first, *rest = kind.shape or (1,)
                sizes[name] = -(-first // shards) * shards * prod(rest) * SIZES[kind.dtype]
        reduced = sum(nbytes for name, nbytes in sizes.items() if name in self.step.gradients)
        whole, buffer = sum(map(up, sizes.values())), up(sum(sizes.values()))
        return Unit(whole, buffer, up(reduced), up(reduced // shards), path in self.kept)

    def _reads(self, event: Json) -> list[int]:
        for kind in ("run", "recompute", "view"):
            if kind in event:
                op = self.step.ops[self.step.index[event[kind]]]
                owners = [self.root(value) for value in op.reads]
                return [self.unit[owner] for owner in owners if self.unit.get(owner, 0)]
        return []

    def borders(self, events: list[Json]) -> dict[int, list[tuple[str, int]]]:
        """What happens before which event, in order; for the last event also what happens behind it."""
        executes = [bool({"run", "recompute", "view"} & event.keys()) for event in events]
        boundary = next(at for at, event in enumerate(events) if "backward_start" in event)
        found: list[tuple[int, int, int, str]] = []  # event, rank among its borders, unit, action
        reads = [(at, unit) for at, event in enumerate(events) for unit in self._reads(event)]
        for unit in range(1, len(self.units)):
            inside = [at for at, of in reads if of == unit and at < boundary]
            if inside:
                found.append((inside[0], 1, unit, "gather"))
                after = (at for at in range(inside[-1] + 1, boundary) if executes[at])
                found.append((next(after, boundary), 0, unit, "release"))
        delivers = [at for at in range(boundary, len(events)) if "deliver" in events[at]]
        waiting = []
        for unit in range(len(self.units)):
            again = [at for at, of in reads if of == unit and at > boundary] if unit else []
            if again:
                found.append((again[0], 1, unit, "gather again"))
            last = [
                *again,
                *(d for d in delivers for s in events[d]["deliver"] if s in self.unit and self.unit[s] == unit),
            ]
            end = min((d for d in delivers if d >= max(last)), default=len(events)) if last else len(events)
            if unit == 0 or end >= len(events) - 1:
                waiting.append(unit)
            else:
                following = next(d for d in delivers if d > end)
                at = next((at for at in range(end + 1, following) if executes[at]), following)
                found.append((at, 0, unit, "reduce"))
        by_event: dict[int, list[tuple[str, int]]] = {0: [("gather", 0)]}
        for at, _, unit, action in sorted(found):
            by_event.setdefault(at, []).append((action, unit))
        by_event.setdefault(boundary, []).append(("release", 0))
        if boundary + 1 < len(events):
            by_event.setdefault(boundary + 1, []).insert(0, ("gather again", 0))
            by_event.setdefault(len(events) - 1, []).extend(("reduce", unit) for unit in waiting)
        self.boundary = boundary
        return by_event

    def device(
        self, events: list[Json], bare: list[int], lasting: list[int], delivered: list[Delivered], kind: str
    ) -> list[int]:
        """Bytes of the device during each event.

        bare, lasting: the same without sharding and without gradients that have been delivered; in `lasting` only what
        is there before the event, too.
        """
        borders, held = self.borders(events), list[int]()
        self.live: dict[tuple[str, int], int] = {}
        self.order: list[int] = []
        self.behind: tuple[str, int] | None = None
        self.done: set[int] = set()
        of_parameters = [one for one in delivered if one.source in self.unit]
        for at in range(len(events)):
            peak = 0

            def waits(at: int = at) -> int:
                return sum(g.nbytes for g in of_parameters if g.at <= at and self.unit[g.source] not in self.done)

            for action, unit in borders.get(at, []):
                for _ in self.act(action, unit):
                    peak = max(peak, lasting[at] + waits() + sum(self.live.values()))
            if at == self.boundary and self.behind is not None:
                self.live.pop(self.behind, None)
            held.append(max(peak, bare[at] + waits() + sum(self.live.values())))
            if kind != "retained":
                self.live = {what: nbytes for what, nbytes in self.live.items() if what[0] != "shards"}
        return held

    def act(self, action: str, unit: int) -> Any:
        """Yield whenever something has been allocated."""
        about = self.units[unit]
        if not about.whole:
            return
        if action == "gather" and ("whole", unit) not in self.live:
            self.live["buffer", unit] = about.buffer
            yield
            if self.behind is not None:
                self.live.pop(self.behind, None)
            self.behind = "buffer", unit
            self.live["whole", unit] = about.whole
            yield
        elif action == "release":
            if not about.kept:
                del self.live["whole", unit]
            self.order.append(unit)
        elif action == "gather again":
            if ("whole", unit) not in self.live:
                self.live["buffer", unit] = about.buffer
                yield
                self.live["whole", unit] = about.whole
                yield
                del self.live["buffer", unit]
            before = self.order[self.order.index(unit) - 1] if unit in self.order[1:] else None
            if before is not None and ("whole", before) not in self.live:
                self.live["buffer", before] = self.units[before].buffer
                yield
        elif action == "reduce":
            self.live.pop(("whole", unit), None)
            self.live.pop(("gradients", 0), None)
            if about.gradients:
                self.live["gradients", 0] = about.gradients
                yield
                self.done.add(unit)
                self.live["shards", unit] = about.shards
                yield
