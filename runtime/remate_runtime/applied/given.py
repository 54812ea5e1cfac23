"""What `apply` is given: schedules, files and folders of them; and which parts of a model they are for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import nn

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
_SHOWN = 20  # modules in one message


class Read(NamedTuple):
    """A schedule, and the text of the file that it is from, which reports the lines of its faults."""

    schedule: Schedule
    text: str | None

    def bound(self, model: nn.Module, how: How, executes: Engine, path: str | None = None) -> ScheduledForward:
        """The schedule bound to a model. executes: the engine of `how`. path: of `at`, where it is that of a part;
        None: found out, if it is a part."""
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
    """The schedules that were given, those of folders among them."""
    return [_read(one) for one in _listed(schedule)]


def _read(schedule: Given) -> Read:
    if isinstance(schedule, Schedule):
        return Read(schedule, None)
    data = read(schedule)
    return Read(decode(data), data.decode())


def _listed(schedule: Given | Iterable[Given]) -> list[Given]:
    if isinstance(schedule, Schedule | str | os.PathLike):
        if isinstance(schedule, Schedule) or not os.path.isdir(schedule):
            return [schedule]
        found = sorted(os.path.join(schedule, name) for name in os.listdir(schedule) if name.endswith(".json"))
        schedule = [path for path in found if not path.endswith(".schema.json")]
        if not schedule:
            raise BindError(
                "the folder holds no schedule file (*.json)\n  name the folder that `remate plan -o` wrote to"
            )
    several = list(schedule)
    if not several:
        raise BindError("no schedule was given\n  give a file, a folder, or a list of them")
    return [one for given in several for one in (_listed(given) if not isinstance(given, Schedule) else [given])]


def parts_within(model: nn.Module, given: Sequence[Read]) -> dict[str, list[Read]]:
    """By path, the schedules that are for a part of `model`; none, if they are for the model as a whole.

    Raises BindError where some are and others are not, and where a part is not there or cannot have a schedule.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    found: dict[str, list[Read]] = {}
    for one in given:
        for path in unfold_paths(one.schedule.model.at):
            found.setdefault(path, []).append(one)
    if not any(path in modules for path in found):
        return {}
    faults = [
        f"schedule {plain(one.schedule.name)!r}: for a model as a whole, and others are for parts"
        for one in given
        if not one.schedule.model.at
    ]
    faults += refused_paths(model, list(found))
    if faults:
        shown = faults[:_SHOWN] + ([f"… and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else [])
        raise BindError(
            "\n  - ".join([f"{type(model).__name__} is not the model whose parts were planned:", *shown])
            + '\n  plan again: remate.plan(model, args, at=[...]), or edit "at" in the file'
        )
    return found
