"""The span of every block instance in the flat step: the first half of `expand`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from ..errors import ScheduleError
from ..format.json_values import Json
from ..format.limits import MAX_BLOCK_DEPTH, MAX_ITEMS, MAX_NAME, MAX_OPERATIONS
from ..format.schedule import BASELINE, Block, Instance, Operation, Schedule, Statement
from ..format.signature import escape
from ..format.suggest import close_names, did_you_mean


class InstanceSpan(msgspec.Struct, frozen=True):
    """An instance in the step.

    Attributes:
        id: Its id with the ids of enclosing instances.
        where: JSON pointer of the instance.
        parent: Index of the enclosing InstanceSpan; -1 at the top.
    """

    id: str
    prefix: str
    block_name: str
    block: Block
    instance: Instance
    where: str  # JSON pointer of the instance
    parent: int  # index of the enclosing InstanceSpan, -1 at the top
    forward: range
    backward: range

    @property
    def leaf(self) -> bool:
        return not self.block.instances

    def plan(self) -> tuple[Statement, ...]:
        """Return the statements of the instance's plan.

        Raises:
            ScheduleError: R040, the block has no such plan.
        """
        name, plans = self.instance.plan, self.block.plans
        if name == BASELINE:
            return ()
        if name not in plans:
            known = sorted({*plans, BASELINE})
            hint = f"plans of {self.block_name}: {', '.join(close_names(name, known) or known[:8])}"
            raise ScheduleError(
                "R040", f"block {self.block_name!r} has no plan {name[:80]!r}", f"{self.where}/plan", hint
            )
        return plans[name]


class _Size(NamedTuple):
    """The size of an expanded block, including nested blocks. items: see MAX_ITEMS."""

    forward: int
    backward: int
    instances: int
    items: int


def lay_out(schedule: Schedule) -> tuple[list[InstanceSpan], int]:
    """Return all instances in forward order, enclosing ones before inner ones, and the number of forward operations.

    Raises:
        ScheduleError: R031, R032, R033, R071, R072, R073.
    """
    sizes = _sizes(schedule)
    total = _total(sizes[i.block] for i in schedule.program)
    if max(total.forward + total.backward, total.instances) > MAX_OPERATIONS:
        raise ScheduleError("R072", f"over {MAX_OPERATIONS} operations or instances", "/program")
    if total.items > MAX_ITEMS:
        raise ScheduleError("R072", f"over {MAX_ITEMS} arguments, outputs and bound names in all instances", "/program")
    places: list[InstanceSpan] = []
    _place(schedule, schedule.program, -1, "/program", places, sizes, 0, total.forward + total.backward)
    seen: set[str] = set()
    for place in places:
        if place.id in seen:
            raise ScheduleError("R031", f"two instances are called {place.id!r}", place.where, "rename one")
        seen.add(place.id)
    return places, total.forward


def leaf_numbers(places: Iterable[InstanceSpan], ids: Sequence[str]) -> dict[str, int]:
    """Return by id of an operation the number of its instance. ids: those of all operations."""
    return {
        ids[index]: number
        for number, place in enumerate(places)
        if place.leaf
        for index in (*place.forward, *place.backward)
    }


def _place(
    schedule: Schedule,
    instances: tuple[Instance, ...],
    parent: int,
    where: str,
    places: list[InstanceSpan],
    sizes: dict[str, _Size],
    start: int,
    end: int,
) -> None:
    """Place `instances`: forward operations begin at `start`; backward runs in reverse and stops at `end`."""
    for at, instance in enumerate(instances):
        block = _block(schedule, instance.block, f"{where}/{at}/block")
        forward, backward = sizes[instance.block][:2]
        above = places[parent] if parent >= 0 else None
        full = f"{above.id}.{instance.id}" if above else instance.id
        prefix = instance.prefix if instance.prefix is not None else instance.id
        if above and above.prefix:
            prefix = f"{above.prefix}.{prefix}" if prefix else above.prefix
        if max(len(full), len(prefix)) > MAX_NAME:
            raise ScheduleError("R073", f"a full id of more than {MAX_NAME} characters", f"{where}/{at}/id")
        spans = range(start, start + forward), range(end - backward, end)
        places.append(InstanceSpan(full, prefix, instance.block, block, instance, f"{where}/{at}", parent, *spans))
        if block.instances:
            inside = f"/blocks/{escape(instance.block)}/instances"
            _place(schedule, block.instances, len(places) - 1, inside, places, sizes, start, end)
        start, end = start + forward, end - backward


def _sizes(schedule: Schedule) -> dict[str, _Size]:
    """Return the expanded size of every block. Detects cycles."""
    sizes: dict[str, _Size] = {}
    open_: list[str] = []

    def size(name: str, where: str) -> _Size:
        if name in sizes:
            return sizes[name]
        if name in open_:
            cycle = " → ".join([*open_[open_.index(name) :], name])
            raise ScheduleError("R032", f"a block contains itself: {cycle}", where, "break the cycle")
        if len(open_) >= MAX_BLOCK_DEPTH:
            raise ScheduleError("R071", f"blocks nest deeper than {MAX_BLOCK_DEPTH}", where)
        block = _block(schedule, name, where)
        open_.append(name)
        inside = f"/blocks/{escape(name)}/instances"
        children = [size(child.block, f"{inside}/{at}/block") for at, child in enumerate(block.instances)]
        open_.pop()
        if block.instances and (block.forward or block.backward):
            hint = "move the operations into a block of their own"
            raise ScheduleError("R015", "a block has both operations and instances", f"/blocks/{escape(name)}", hint)
        inside_it = _total(children)
        sizes[name] = _Size(
            len(block.forward) + inside_it.forward,
            len(block.backward) + inside_it.backward,
            inside_it.instances,
            _items(block) + inside_it.items,
        )
        return sizes[name]

    for at, instance in enumerate(schedule.program):
        size(instance.block, f"/program/{at}/block")
    for name in schedule.blocks:
        size(name, f"/blocks/{escape(name)}")
    return sizes


def _total(sizes: Iterable[_Size]) -> _Size:
    """Return the total size of instances."""
    listed = list(sizes)
    forward, backward, inside, items = (sum(size[part] for size in listed) for part in range(4))
    return _Size(forward, backward, inside + len(listed), items)


def _items(block: Block) -> int:
    """Return the number of items that every instance of a block creates beside its operations."""
    names = sum(map(len, (block.inputs, block.parameters, block.buffers, block.live, block.constants)))
    return names + sum(_items_of(line) for line in (*block.forward, *block.backward))


def _items_of(line: Operation) -> int:
    outputs = 1 if isinstance(line.out, str) else len(line.out)
    return outputs + _nested(line.args) + sum(1 + _nested(value) for value in line.kwargs.values())


def _nested(argument: Json) -> int:
    if not isinstance(argument, list | tuple):
        return 0
    return len(argument) + sum(_nested(item) for item in argument if isinstance(item, list | tuple))


def _block(schedule: Schedule, name: str, where: str) -> Block:
    if name not in schedule.blocks:
        hint = did_you_mean(name, schedule.blocks, "define it under `blocks`")
        raise ScheduleError("R033", f"there is no block {name[:80]!r}", where, hint)
    return schedule.blocks[name]
