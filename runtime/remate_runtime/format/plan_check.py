"""Checks of statements and lanes that need no expansion."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .limits import MAX_INTEGER, MAX_NAME, MAX_TILES
from .literals import Faults
from .schedule import SPLIT_FEATURE, Lane, Page, Recompute, Schedule, Split
from .suggest import did_you_mean
from .vocabulary import PAGE_MEMORIES

_NAME = r"[A-Za-z0-9_~-]+(?:\.[A-Za-z0-9_~-]+)*(?:@(?:all|[0-9]{1,5})(?:\.[a-z0-9]+){0,2})?"  # perhaps of a tile
_OPERATION = re.compile(_NAME)
_VALUE = re.compile(rf"{_NAME}(?::[0-9]{{1,5}})?")


def check_recompute(faults: Faults, recompute: Recompute, where: str) -> None:
    if not recompute.recompute:
        faults.add("R013", "a recomputation that names nothing", f"{where}/recompute", "delete this entry")
    for index, name in enumerate(recompute.recompute):
        _operation(faults, name, f"{where}/recompute/{index}")
    _operation(faults, recompute.before, f"{where}/before")
    faults.text(recompute.note, f"{where}/note")


def check_page(faults: Faults, page: Page, where: str) -> None:
    if not page.page:
        faults.add("R013", "a page that names nothing", f"{where}/page", "delete this entry")
    for index, name in enumerate(page.page):
        here = f"{where}/page/{index}"
        if len(name) > MAX_NAME:
            faults.add("R073", f"a name of more than {MAX_NAME} characters", here)
        elif not _VALUE.fullmatch(name):
            hint = "write it without %" if name.startswith("%") else "an id, an instance, or id:2 for output 2"
            faults.add("R014", f"{name[:80]!r} is not a name of a value", here, hint)
    for field in ("out", "gone", "back"):
        if point := getattr(page, field):
            _operation(faults, point, f"{where}/{field}")
    faults.text(page.note, f"{where}/note")


def check_split(faults: Faults, split: Split, where: str) -> None:
    if not split.split:
        faults.add("R013", "a split that names nothing", f"{where}/split", "delete this entry")
    for index, name in enumerate(split.split):
        faults.name(name, f"{where}/split/{index}")
    if not 2 <= split.into <= MAX_TILES:
        faults.add("R013", f"{str(split.into)[:40]} tiles", f"{where}/into", f"a number from 2 to {MAX_TILES}")
    faults.text(split.note, f"{where}/note")


def check_top(faults: Faults, schedule: Schedule, where: str) -> None:
    """Check lanes, and that a file with splits requires the feature: splits change the order of sums in gradients."""
    check_lanes(faults, schedule.lanes, f"{where}/lanes")
    plans = [schedule.statements, *(plan for block in schedule.blocks.values() for plan in block.plans.values())]
    if SPLIT_FEATURE not in schedule.requires and any(Split in set(map(type, plan)) for plan in plans):
        hint = f'write "requires": ["{SPLIT_FEATURE}"]'
        faults.add("R093", "the file has splits and does not require the feature", f"{where}/requires", hint)


def _operation(faults: Faults, name: str, where: str) -> None:
    """Check the name of an operation, a tile or an instance."""
    if "@" not in name or len(name) > MAX_NAME:
        faults.name(name, where)
    elif not _OPERATION.fullmatch(name):
        faults.add("R014", f"{name[:80]!r} is not a name", where, "a tile is written id@3")


def check_lanes(faults: Faults, lanes: Mapping[str, Lane], where: str) -> None:
    for name in lanes:
        if name not in PAGE_MEMORIES:
            hint = did_you_mean(name, PAGE_MEMORIES, f"lanes lead to {' and '.join(PAGE_MEMORIES)}")
            faults.add("R013", f"{name[:80]!r} is no memory that values are paged to", where, hint)


def check_lane(faults: Faults, lane: Lane, where: str) -> None:
    for field in ("out", "back"):
        if not 0 < getattr(lane, field) <= MAX_INTEGER:
            faults.add("R013", f"{field} is no bandwidth", f"{where}/{field}", "bytes per second: 2000000000")
    faults.number(lane.latency, f"{where}/latency")
