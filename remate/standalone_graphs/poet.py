"""POET on a bare instance: the sequence with pages of least energy or time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from remate_runtime.flat_step import FlatPage

from ..budget import BudgetError, parse_budget
from ..errors import UnknownNameError
from ..profile.power import Power, named_power
from ..strategy import Request, StepInstance
from ..strategy.effort import Effort
from ..strategy.paging.goal import POET, EnergyGoal
from .form import BareInstance
from .graph import bare_step, sequence
from .result import FORMAT, VERSION, BarePage, BareResult, digest

_UNLIMITED = 1 << 60  # bytes


class PoetGoal(NamedTuple):
    """Arguments of `solve` that only POET takes, checked."""

    objective: str
    power: Power | None
    limit: float | None
    room: int

    @staticmethod
    def of(
        strategy: str, objective: str, power: str, limit: float | None, disk_budget: str | int | None
    ) -> PoetGoal | None:
        """Return the goal of POET, or None for another strategy.

        Raises:
            UnknownNameError: There is no such objective or device, or another strategy gets an argument of POET.
            BudgetError: `disk_budget` is not a size, or `limit` is less than 1.
        """
        given = objective != "time" or power or limit is not None or disk_budget is not None
        if strategy != POET:
            if given:
                raise UnknownNameError(
                    f"objective, power, limit and disk_budget belong to the strategy poet, not to {strategy[:80]!r}\n"
                    "  hint: strategy='poet' (--strategy poet)"
                )
            return None
        room = _UNLIMITED if disk_budget is None else parse_budget(disk_budget).size
        if room is None:
            raise BudgetError(f"storage has a limit in bytes, not {disk_budget}\n  hint: write 64GiB")
        checked = EnergyGoal.checked(objective, power, limit)
        return PoetGoal(checked.objective, checked.power, limit, room)


def solve_by_poet(
    bare: BareInstance,
    budget: str | int,
    goal: PoetGoal,
    effort: Effort,
    gap: float,
    time_limit: float | None,
    progress: Callable[[str], None] | None,
) -> BareResult:
    """Return POET's result for an instance. Arguments are those of `solve`, checked."""
    from ..strategy.paging.poet import least

    step = bare_step(bare, orderable=False).whole
    if goal.power is not None:
        graph = replace(step.graph, lanes={**step.graph.lanes, "disk": goal.power.storage.lane})
        step = StepInstance(graph, once=step.once, end=step.end)
    base = step.baseline
    request = Request(parse_budget(budget).resolve(base.peak), gap, effort)
    target = EnergyGoal.checked(goal.objective, goal.power.name if goal.power else "", goal.limit, room=goal.room)
    best = least(step, request, target, time_limit=time_limit, progress=progress or (lambda text: None), waits=False)
    paged, bound = best.paged, base.time
    if goal.objective == "time":
        bound = min(paged.time, int(base.time * (1.0 + best.bound)))
    return BareResult(
        FORMAT,
        VERSION,
        bare.name,
        digest(bare),
        request.budget,
        paged.peak,
        paged.time,
        base.peak,
        base.time,
        bound,
        POET,
        best.solver,
        "optimal" if best.optimal else "heuristic",
        False,
        sequence(bare, paged.recomputes),
        _pages(bare, step, paged.pages, [recompute.before for recompute in paged.recomputes]),
        goal.power.name if goal.power else "",
        best.energy if goal.power else None,
    )


def _pages(
    bare: BareInstance, step: StepInstance, pages: tuple[FlatPage, ...], befores: list[int]
) -> tuple[BarePage, ...]:
    def position(point: int) -> int:
        return point + sum(before < point for before in befores)

    bare_pages: list[BarePage] = []
    for page in pages:
        name, _, number = step.graph.values[page.value].name.rpartition(":")
        assert page.gone is not None
        assert page.back is not None
        bare_pages.append(
            BarePage(f"{name}:{number}" if number != "0" else name, position(page.gone), position(page.back))
        )
    return tuple(sorted(bare_pages, key=lambda page: (page.gone, page.output)))


def energy_of(bare: BareInstance, result: BareResult) -> float:
    """Return the joules of a result by definition: its executions, and two copies for each page."""
    power = named_power(result.power)
    sizes = _sizes(bare)
    copies = sum(
        power.storage.out_ns(sizes[page.output]) + power.storage.back_ns(sizes[page.output]) for page in result.pages
    )
    return power.joules(result.time, copies)


def _sizes(bare: BareInstance) -> Mapping[str, int]:
    return {
        f"{node.id}:{number}" if number else node.id: nbytes
        for node in bare.nodes
        for number, nbytes in enumerate(node.bytes)
    }
