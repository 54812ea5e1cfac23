"""All strategies and bounds by name: those of remate, and those of other packages.

To add one to remate, write a file that defines it and add a line here. Another package offers its own by an entry
point, whose name is that of the strategy and whose object is a `Strategy` (or a `Bound`):

    [project.entry-points."remate.strategies"]
    tabu = "my_package.tabu:TABU"

Modules are imported when they are requested by name.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from ..errors import UnknownNameError
from .base import Bound, Strategy

STRATEGIES = {
    "baseline": ".baseline:BASELINE_STRATEGY",
    "hierarchical": ".blocks.hierarchical:HIERARCHICAL",
    "hiremate": ".levels.hiremate:HIREMATE",
    "flat": ".milp.flat:FLAT",
    "growing-cuts": ".bound.growing_cuts:GROWING_CUTS",
    "flat-squeeze": ".milp.flat_squeeze:FLAT_SQUEEZE",
    "greedy": ".local.greedy:GREEDY",
    "recreate": ".local.recreate:RECREATE",
    "polish": ".local.polish:POLISH",
    "checkmate": ".milp.checkmate:CHECKMATE",
    "checkmate-approx": ".milp.checkmate:CHECKMATE_APPROX",
    "dtr": ".online.dtr:DTR",
    "coop": ".online.coop:COOP",
    "treewidth": ".online.treewidth:TREEWIDTH",
    "fastsa": ".local.fastsa:FASTSA",
    "anneal": ".local.fastsa:ANNEAL",
    "moccasin": ".cpsat.moccasin:MOCCASIN",
    "exact": ".states.exact:EXACT",
    "beam": ".states.beam:BEAM",
    "checkpoint-blocks": ".chain.checkpoint:CHECKPOINT_BLOCKS",
    "selective": ".chain.selective:SELECTIVE",
    "chen-sqrt": ".chain.checkpoint:CHEN",
    "rotor": ".chain.rotor_step:ROTOR",
    "rockmate": ".chain.rockmate:ROCKMATE",
}
BOUNDS = {
    "cut": ".bound.cuts:CUT",
    "cuts": ".bound.cuts:CUTS",
    "passes": ".bound.passes:PASSES",
    "states": ".states.exact:STATES",
}
STRATEGY_GROUP, BOUND_GROUP = "remate.strategies", "remate.bounds"
Kind = TypeVar("Kind", Strategy, Bound)


def strategy_names() -> tuple[str, ...]:
    """Return all strategies: remate's own, then those of other packages."""
    return tuple(dict.fromkeys([*STRATEGIES, *sorted(_foreign(STRATEGY_GROUP))]))


def bound_names() -> tuple[str, ...]:
    """Return all bounds: remate's own, then those of other packages."""
    return tuple(dict.fromkeys([*BOUNDS, *sorted(_foreign(BOUND_GROUP))]))


def is_bound(name: str) -> bool:
    """Return whether a bound has this name."""
    return name in BOUNDS or name in _foreign(BOUND_GROUP)


def strategy(name: str) -> Strategy:
    """Return the strategy of this name.

    Raises:
        UnknownNameError: There is none, or the entry point is not a strategy of this name.
    """
    return _found(name, Strategy, STRATEGIES, STRATEGY_GROUP)


def bound(name: str) -> Bound:
    """Return the bound of this name. Raises UnknownNameError as `strategy` does."""
    return _found(name, Bound, BOUNDS, BOUND_GROUP)


def _foreign(group: str) -> dict[str, EntryPoint]:
    return _entry_points(group, tuple((folder, _modified(folder)) for folder in sys.path))


@lru_cache(maxsize=8)
def _entry_points(group: str, _folders: tuple[tuple[str, int], ...]) -> dict[str, EntryPoint]:
    """Read the metadata of all installed packages, which takes longer than to solve a small graph: once until a folder
    of `sys.path` changes, as it does when a package is installed."""
    return {point.name: point for point in entry_points(group=group)}


def _modified(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def _found(name: str, kind: type[Kind], own: dict[str, str], group: str) -> Kind:
    if name in own:
        module, _, attribute = own[name].partition(":")
        return getattr(import_module(module, __package__), attribute)
    point, word = _foreign(group).get(name), kind.__name__.lower()
    if point is None:
        known = ", ".join(dict.fromkeys([*own, *sorted(_foreign(group))]))
        raise UnknownNameError(f"there is no {word} {name[:80]!r}\n  hint: one of {known}")
    try:
        loaded = point.load()
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise UnknownNameError(f"the {word} {name!r} of {point.value} cannot be loaded: {what}") from error
    if not isinstance(loaded, kind) or loaded.name != name:
        what = f"is a {type(loaded).__name__}, not a {kind.__name__}"
        if isinstance(loaded, kind):
            what = f"is {loaded.name!r}"
        raise UnknownNameError(f"the {word} {name!r} of {point.value} {what}\n  hint: update or uninstall that package")
    return loaded
