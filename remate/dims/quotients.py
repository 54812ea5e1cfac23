"""Numbers that forward computes from sizes by divisions, compared with the expressions that a file has for them.

Forward may choose by such a number without a comparison: `for _ in range(n % 3)`, `scales[n // 16]`. What it does with
other numbers than those of the trace samples is unknown.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec

from remate_runtime.errors import ScheduleError
from remate_runtime.format import Size

from ..capture.sizes import SizeLog, SizeQuotient
from .fitting import SizeFitter
from .size_trees import aligned, dims_of, evaluated, fitted, shape


class Quotient(msgspec.Struct, frozen=True):
    """A number of forward.

    Attributes:
        tree: How forward computes it; None if unknown.
        expressions: Of the grammar of files, equal at all trace samples; empty if there are none.
    """

    tree: Any
    expressions: Sequence[Size]

    def differs(self, sizes: Mapping[str, int]) -> bool:
        """Return whether an expression gives a different number than forward has at some sizes."""
        try:
            number = evaluated(self.tree, sizes)
            return any(expression.at(sizes) != number for expression in self.expressions)
        except (ZeroDivisionError, ScheduleError):
            return True

    def follows(self, probes: Sequence[Mapping[str, int]]) -> bool:
        """Return whether an expression gives forward's number at all sizes."""
        return bool(self.expressions) and not any(map(self.differs, probes))


def quotients(logs: Sequence[SizeLog], fitter: SizeFitter) -> list[Quotient]:
    """Return the numbers of captures at the fitter's sizes that depend on named sizes."""
    known: dict[str, Quotient] = {}
    rows, uneven = aligned([log.quotients for log in logs], _kind)
    for row in rows:
        tree = fitted([each.tree for each in row], fitter)
        if tree is None:
            uneven.append(row)
        elif dims_of(tree):
            known.setdefault(repr(tree), Quotient(tree, fitter.sizes([each.number for each in row])))
    return [*known.values(), *([Quotient(None, ())] if uneven else [])]


def _kind(quotient: SizeQuotient) -> Hashable:
    return quotient.place, shape(quotient.tree)
