"""Bring schedule files up to date after an edit by hand: canonical text, fingerprint, and the figures of `solve`.

    python tools/refresh_schedule.py [--check] FILE.json ...

Peak, time and their baselines are computed from the file; a budget below the peak becomes the peak. With --check
nothing is written, and the exit status is 1 if a file would change. Meant for the corpus in schema/corpus/valid.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from remate.schedule_tools.figures import FIGURES, refreshed
from remate_runtime.format import Schedule, decode, encode, fingerprint
from remate_runtime.support.files import write_atomically

_RECORD = {"strategy": "by hand", "solver": "none", "stopped_by": "edited", "cost": "by hand"}


def refresh(text: str) -> bytes:
    """The canonical text of the schedule in `text`, with derived fields computed again. Raises ScheduleError."""
    tree: dict[str, Any] = json.loads(text)
    tree["solve"] = {**_RECORD, **dict.fromkeys(("budget", *FIGURES), 0), **tree["solve"]}
    tree["model"]["fingerprint"] = "sha256:" + "0" * 64
    schedule = decode(json.dumps(tree))
    return encode(_derived(schedule))


def _derived(schedule: Schedule) -> Schedule:
    replace = msgspec.structs.replace
    schedule = replace(schedule, model=replace(schedule.model, fingerprint=fingerprint(schedule)))
    schedule = refreshed(schedule).schedule
    solve = schedule.solve
    return replace(schedule, solve=replace(solve, budget=max(solve.budget, solve.peak)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("files", nargs="+", type=Path)
    args = parser.parse_args()
    stale = 0
    for path in args.files:
        text = path.read_text(encoding="utf-8")
        fresh = refresh(text)
        if fresh != text.encode():
            stale += 1
            print(path)
            if not args.check:
                write_atomically(path, fresh)
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
