"""Checks of statements and lanes that need no expansion."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .limits import MAX_INTEGER, MAX_NAME
from .literals import Faults
from .schedule import Lane, Page, Recompute
from .suggest import did_you_mean
from .vocabulary import PAGE_MEMORIES

_VALUE = re.compile(r"[A-Za-z0-9_~-]+(?:\.[A-Za-z0-9_~-]+)*(?::[0-9]{1,5})?")


def check_recompute(faults: Faults, recompute: Recompute, where: str) -> None:
    if not recompute.recompute:
        faults.add("R013", "a recomputation that names nothing", f"{where}/recompute", "delete this entry")
    for index, name in enumerate(recompute.recompute):
        faults.name(name, f"{where}/recompute/{index}")
    faults.name(recompute.before, f"{where}/before")
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
            faults.name(point, f"{where}/{field}")
    faults.text(page.note, f"{where}/note")


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
