"""Instance lines of a schedule file, by JSON pointer, and changing the plan that they name."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from remate_runtime.format import PAGE_FEATURE, SPLIT_FEATURE, Instance, Page, Schedule, Split, Statement, escape

_FEATURES: dict[str, type] = {PAGE_FEATURE: Page, SPLIT_FEATURE: Split}


def lines(schedule: Schedule) -> dict[str, Instance]:
    """Every line that places a block: JSON pointer -> instance. One line of a block can place many instances."""
    instances = {f"/program/{at}": instance for at, instance in enumerate(schedule.program)}
    for name, block in schedule.blocks.items():
        inside = f"/blocks/{escape(name)}/instances"
        instances.update({f"{inside}/{at}": instance for at, instance in enumerate(block.instances)})
    return instances


def entry_at(schedule: Schedule, pointer: str) -> Statement:
    """The statement at `/statements/0` or `/blocks/B/plans/P/0`."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    entries = schedule.statements if parts[0] == "statements" else schedule.blocks[parts[1]].plans[parts[3]]
    return entries[int(parts[-1])]


def with_features(schedule: Schedule) -> Schedule:
    """The schedule with `requires` set to exactly the features that its statements need."""
    plans = [schedule.statements, *(plan for block in schedule.blocks.values() for plan in block.plans.values())]
    kinds = {type(statement) for plan in plans for statement in plan}
    needed = tuple(feature for feature, kind in _FEATURES.items() if kind in kinds)
    others = tuple(feature for feature in schedule.requires if feature not in _FEATURES)
    return replace(schedule, requires=(*others, *needed))


def with_plan(schedule: Schedule, pointers: Collection[str], plan: str) -> Schedule:
    """The schedule with another plan named in the lines at `pointers`."""

    def changed(instances: tuple[Instance, ...], where: str) -> tuple[Instance, ...]:
        return tuple(replace(i, plan=plan) if f"{where}/{at}" in pointers else i for at, i in enumerate(instances))

    blocks = {
        name: replace(block, instances=changed(block.instances, f"/blocks/{escape(name)}/instances"))
        for name, block in schedule.blocks.items()
    }
    return replace(schedule, program=changed(schedule.program, "/program"), blocks=blocks)
