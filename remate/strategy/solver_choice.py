"""Which solvers a strategy uses, as a user names them: `hiremate[leaf=checkmate,milp=scip]`."""

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
    """Solvers of a strategy that asks for them (`Strategy.options`).

    leaf: of the parts at the bottom of a tree: "retention" (the retention model), or the name of any strategy. inner:
    of the parts between those and the root: "level" (the integer program over their parts), or the name of any
    strategy. milp: what solves integer programs: "highs", or a solver that Pyomo calls ("cbc", "scip", "gurobi",
    "appsi_highs"). tree: "modules", those of the model, or "graph", the H-Partition.
    """

    leaf: str = "retention"
    inner: str = "level"
    milp: str = HIGHS
    tree: str = "modules"

    @property
    def changed(self) -> dict[str, str]:
        """The options that differ from the defaults."""
        default = msgspec.structs.asdict(DEFAULT)
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value != default[name]}

    def milp_text(self, own: str) -> str:
        """What a file says of the solver of integer programs. own: the text of HiGHS."""
        return own if self.milp == HIGHS else f"{self.milp} through Pyomo"


DEFAULT = Solvers()


def with_solvers(name: str, solvers: Solvers) -> str:
    """A strategy with its solvers, as `strategy=` and `--strategy` take it."""
    options = ",".join(f"{option}={value}" for option, value in solvers.changed.items())
    return f"{name}[{options}]" if options else name


def named_solvers(text: str) -> tuple[str, Solvers]:
    """The name of a strategy and its solvers. Raises UnknownNameError where options cannot be read."""
    match = _NAMED.fullmatch(text)
    if match is None:
        return text, DEFAULT
    given = [part.partition("=") for part in match["options"].split(",")]
    return match["name"], solvers_of([(name.strip(), value.strip()) for name, _, value in given])


def solvers_of(given: list[tuple[str, str]]) -> Solvers:
    """Solvers by option. Raises UnknownNameError for an option that there is not, and for what is no name."""
    known = Solvers.__struct_fields__
    for option, value in given:
        if option not in known or not _VALUE.fullmatch(value):
            raise UnknownNameError(
                f"{f'{option}={value}'[:80]!r} names no solver\n  hint: one of {', '.join(known)}, with a name: "
                "leaf=checkmate"
            )
    return Solvers(**dict(given))
