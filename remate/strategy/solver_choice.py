"""Solvers of a strategy, as the user names them: `hiremate[leaf=checkmate,milp=scip]`."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from ..errors import UnknownNameError

Option = Literal["leaf", "inner", "milp", "tree"]
HIGHS = "highs"  # the solver of integer programs by the fast path
_NAMED = re.compile(r"(?P<name>[^\[\]]*)\[(?P<options>[^\[\]]*)\]")
_VALUE = re.compile(r"[A-Za-z0-9_.-]{1,80}")


class Solvers(msgspec.Struct, frozen=True):
    """Solvers of a strategy that has a choice (`Strategy.options`).

    Attributes:
        leaf: Solver of the lowest parts of a tree: "retention" (the retention model), or the name of any strategy.
        inner: Solver of the parts between those and the root: "level" (the integer program over their parts), or the
            name of any strategy.
        milp: Solver of integer programs: "highs", or a solver of Pyomo ("cbc", "scip", "gurobi", "appsi_highs").
        tree: "modules" for the modules of the model, or "graph" for the H-Partition.
    """

    leaf: str = "retention"
    inner: str = "level"
    milp: str = HIGHS
    tree: str = "modules"

    @property
    def changed(self) -> dict[str, str]:
        """Return the options that differ from the defaults."""
        default = msgspec.structs.asdict(DEFAULT)
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value != default[name]}

    def milp_text(self, own: str) -> str:
        """Return the text for the solver of integer programs in a file. own: the text for HiGHS."""
        return own if self.milp == HIGHS else f"{self.milp} through Pyomo"


DEFAULT = Solvers()


def with_solvers(name: str, solvers: Solvers) -> str:
    """Return a strategy with its solvers, as `strategy=` and `--strategy` take it."""
    options = ",".join(f"{option}={value}" for option, value in solvers.changed.items())
    return f"{name}[{options}]" if options else name


def named_solvers(text: str) -> tuple[str, Solvers]:
    """Return the name of a strategy and its solvers. Raises UnknownNameError if the options cannot be read."""
    match = _NAMED.fullmatch(text)
    if match is None:
        return text, DEFAULT
    given = [part.partition("=") for part in match["options"].split(",")]
    return match["name"], solvers_of([(name.strip(), value.strip()) for name, _, value in given])


def solvers_of(given: list[tuple[str, str]]) -> Solvers:
    """Return solvers by option. Raises UnknownNameError for an unknown option, or a value that is not a name."""
    known = Solvers.__struct_fields__
    for option, value in given:
        if option not in known or not _VALUE.fullmatch(value):
            raise UnknownNameError(
                f"{f'{option}={value}'[:80]!r} names no solver\n  hint: one of {', '.join(known)}, with a name: "
                "leaf=checkmate"
            )
    return Solvers(**dict(given))
