"""Makes the program of a finding small: statements go as long as the finding stays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from .case import Case
from .programs import Program
from .trial import Finding

_ASSIGNED = re.compile(r"(\w+) = ")


def shrunk(case: Case, finding: Finding) -> Program:
    """Return the smallest program that has a finding of the same kind."""
    program, smaller = case.program, True
    while smaller:
        smaller = False
        for candidate in _smaller(program):
            if _still(case, candidate, finding):
                program, smaller = candidate, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Programs without one statement, then with one that only names the value before it. The last returns; it stays."""
    statements = program.statements
    for at in reversed(range(len(statements) - 1)):
        yield replace(program, statements=statements[:at] + statements[at + 1 :])
    for at in reversed(range(1, len(statements) - 1)):
        value, before = (_ASSIGNED.match(statements[index]) for index in (at, at - 1))
        if value and before and value[1] != before[1]:
            plain = f"{value[1]} = {before[1]}"
            if plain != statements[at]:
                yield replace(program, statements=(*statements[:at], plain, *statements[at + 1 :]))


def _still(case: Case, program: Program, finding: Finding) -> bool:
    other = case.run(program.source).finding
    return other is not None and (other.kind, other.what) == (finding.kind, finding.what)
