"""What a schedule notices when the model is no longer the planned one, and what that costs.

    python -m tools.bench.trust [changes] [gpt2] [files] [cost] [--layers 12] [--steps 5] [--only CLASS]

The table has a row for each class of changes. *early*: the change comes between planning and `apply`, which reads the
file as another process does. *late*: after `apply` and one good step. Each net is tried alone: digest (early) and guard
(late) without the self-check; the self-check without digest and guard, with verify="first" for early changes and
verify=1 for late ones. So a case can count in several columns. *exact*: the schedule computes what the changed model
computes. *silent*: none of these. *unchanged, refused*: how often a net speaks against the model that nobody changed.
Then a GPT-2, files from strangers, and costs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import NamedTuple

import torch

from ..text import environment, table
from .cases import Case, cases
from .cost import cost, guards, strangers
from .gpt2 import cases as gpt2_cases
from .models import Sources
from .outcome import Answer, answer

_HEAD = ("class of changes", "cases", "not planned", "digest", "self-check", "exact", "silent")
_HEAD += ("guard", "self-check", "exact", "silent", "unchanged, refused")


class Row(NamedTuple):
    """What became of the cases of a class."""

    planned: list[tuple[Case, Answer, Answer]]
    refused: list[Case]
    false_alarms: int


def run(cases: Iterable[Case]) -> dict[str, Row]:
    """Every case, early and late."""
    rows: dict[str, Row] = {}
    for case in cases:
        row = rows.setdefault(case.group, Row([], [], 0))
        schedule = case.schedule()
        if schedule is None:
            row.refused.append(case)
            continue
        if not any(scheduled.schedule is case.schedule for scheduled, _, _ in row.planned):
            row = rows[case.group] = row._replace(false_alarms=row.false_alarms + _alarms(case))
        early, late = (answer(case.build, schedule, case.args, when) for when in (False, True))
        row.planned.append((case, early, late))
    return rows


def _alarms(case: Case) -> int:
    """Of the model that nobody changed."""

    def build() -> object:
        model, _, undo = case.build()
        return model, lambda: None, undo

    schedule = case.schedule()
    assert schedule is not None
    answers = [answer(build, schedule, case.args, late) for late in (False, True)]  # type: ignore[arg-type]
    return sum(answered.net or answered.check or not answered.exact for answered in answers)


def numbers(name: str, row: Row) -> tuple[str, ...]:
    """A row of the table."""
    early, late = [cost for _, cost, _ in row.planned], [cost for _, _, cost in row.planned]
    counts = [len(row.planned) + len(row.refused), len(row.refused)]
    for answers in (early, late):
        counts += [sum(a.net for a in answers), sum(a.check for a in answers)]
        counts += [sum(a.exact for a in answers), sum(a.silent for a in answers)]
    return (name, *map(str, [*counts, row.false_alarms]))


def total(rows: dict[str, Row]) -> Row:
    planned = [planned_case for row in rows.values() for planned_case in row.planned]
    return Row(
        planned, [case for row in rows.values() for case in row.refused], sum(r.false_alarms for r in rows.values())
    )


def listed(rows: dict[str, Row]) -> str:
    """The cases that one net alone noticed, and those that nothing did."""
    lines = ["Only the self-check notices (e: early, l: late):"]
    for name, row in rows.items():
        alone = {
            case.name: "".join(when for when, a in zip("el", (early, late), strict=True) if a.check and not a.net)
            for case, early, late in row.planned
        }
        alone = {case: when for case, when in alone.items() if when}
        if alone and len(alone) == len(row.planned):
            lines.append(f"  {name}: all ({', '.join(dict.fromkeys(alone.values()))})")
        elif alone:
            lines.append(f"  {name}: {', '.join(f'{case} ({when})' for case, when in alone.items())}")
    silent = [
        f"  {name}: {case.name} ({when})"
        for name, row in rows.items()
        for case, *answers in row.planned
        for when, a in zip(("early", "late"), answers, strict=True)
        if a.silent
    ]
    return "\n".join([*lines, "", "Silent:", *(silent or ["  none"])])


def changes(only: str) -> str:
    """The table, and what is to be said of it."""
    with Sources() as sources:
        rows = run(case for case in cases(sources) if only in case.group)
    body = [_HEAD, *(numbers(name, row) for name, row in rows.items()), numbers("all", total(rows))]
    return f"{table(body)}\n\n{listed(rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help="what to print: changes, gpt2, files, cost; all by default")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", default="", help="classes of changes whose names contain this")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sections = {
        "changes": lambda: changes(args.only),
        "gpt2": gpt2_cases,
        "files": strangers,
        "cost": lambda: f"{cost(args.layers, args.steps)}\n\n{guards()}",
    }
    print(environment(), flush=True)
    for name in args.sections or sections:
        print("", sections[name](), sep="\n", flush=True)


if __name__ == "__main__":
    main()
