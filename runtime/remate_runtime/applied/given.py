"""Reads the schedules, files and folders that `apply` receives, and finds the parts of the model that they are for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import nn

from ..bind.modules import modules_by_path
from ..engine.compiled_step import Engine
from ..errors import BindError, ScheduleError, ScheduleFaultsError
from ..format.module_paths import unfold_paths
from ..format.positions import locate
from ..format.reader import decode, read
from ..format.schedule import Schedule
from ..self_check import Checks
from ..staleness.parts import part_like
from ..staleness.trust import Stale
from ..support.plain_text import plain
from .part_view import refused_paths
from .scheduled_forward import ScheduledForward

Given = Schedule | str | os.PathLike[str]
How = tuple[
    tuple[str, ...], Stale, str, bool, Checks, bool
]  # namespaces, stale, engine, record_functions, checks, cuda_graphs
_SHOWN = 20  # modules in a message


class Read(NamedTuple):
    """A schedule and the text of its file, if any. The text gives the lines of faults."""

    schedule: Schedule
    text: str | None

    def bound(self, model: nn.Module, how: How, executes: Engine, path: str | None = None) -> ScheduledForward:
        """Bind the schedule to a model.

        Args:
            model: The live model or part.
            how: The options of `apply`.
            executes: The engine.
            path: The part's path in `at`; None to search for it.
        """
        namespaces, stale, _, record_functions, *_ = how
        ranges = None if not record_functions else f"{path}." if path else ""
        if path is None:
            path = part_like(model, self.schedule) if self.schedule.model.at else ""
        try:
            return ScheduledForward(model, self.schedule, namespaces, stale, executes, ranges, path)
        except ScheduleError as error:
            if self.text is None:
                raise
            raise ScheduleFaultsError(locate(self.text, error.faults)) from None


def read_all(schedule: Given | Iterable[Given]) -> list[Read]:
    """Return the schedules, including those in folders."""
    return [_read(source) for source in _listed(schedule)]


def _read(schedule: Given) -> Read:
    if isinstance(schedule, Schedule):
        return Read(schedule, None)
    data = read(schedule)
    return Read(decode(data), data.decode())


def _listed(schedule: Given | Iterable[Given]) -> list[Given]:
    if isinstance(schedule, Schedule | str | os.PathLike):
        if isinstance(schedule, Schedule) or not os.path.isdir(schedule):
            return [schedule]
        paths = sorted(os.path.join(schedule, name) for name in os.listdir(schedule) if name.endswith(".json"))
        schedule = [path for path in paths if not path.endswith(".schema.json")]
        if not schedule:
            raise BindError(
                "the folder contains no schedule file (*.json)\n  pass the folder that `remate plan -o` wrote to"
            )
    several = list(schedule)
    if not several:
        raise BindError("no schedule was given\n  pass a file, a folder, or a list of them")
    return [
        entry for source in several for entry in (_listed(source) if not isinstance(source, Schedule) else [source])
    ]


def parts_within(model: nn.Module, given: Sequence[Read]) -> dict[str, list[Read]]:
    """Return the schedules for parts of `model` by path; an empty dict if they are for the whole model.

    Raises:
        BindError: Only some are for parts, or a part does not exist or cannot have a schedule.
    """
    modules = modules_by_path(model)
    by_path: dict[str, list[Read]] = {}
    for entry in given:
        for path in unfold_paths(entry.schedule.model.at):
            by_path.setdefault(path, []).append(entry)
    if not any(path in modules for path in by_path):
        return {}
    faults = [
        f"schedule {plain(entry.schedule.name)!r}: for a model as a whole, and others are for parts"
        for entry in given
        if not entry.schedule.model.at
    ]
    faults += refused_paths(model, list(by_path))
    if faults:
        shown = faults[:_SHOWN] + ([f"… and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else [])
        raise BindError(
            "\n  - ".join([f"{type(model).__name__} is not the model whose parts were planned:", *shown])
            + '\n  plan again: remate.plan(model, args, at=[...]), or edit "at" in the file'
        )
    return by_path
