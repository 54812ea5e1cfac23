"""Policies: which strategies and bounds run, in which order, and on which steps. `AUTO` is read from top to bottom.

A search runs the steps of a policy and ends as soon as its best schedule is proven close enough. If nothing fits the
budget, the strategies of `smallest` propose the smallest peak that they reach, for any budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec

import msgspec

from ..errors import UnknownNameError
from ..partition.canonical import form
from . import registry
from .base import BASELINE, Bound, Context, Request, Strategy
from .instance import StepInstance
from .solver_choice import DEFAULT, Solvers, named_solvers

TINY = 24  # forward operations up to which a search can often visit all states of a step
SMALL = 320  # forward operations up to which greedy search takes no longer than a solve
LEVELLED = 128  # forward operations up to which a tree of parts takes about half a second
LARGE = 1000  # forward operations from which walks over states take tens of seconds
CHAINED = 0.12  # share of the step's time: walks over states have not improved chains with a smaller gap
PORTFOLIO = "portfolio"  # the policy of all strategies
TREES = ("modules", "graph")  # values of the option `tree`
EXTRA = {"moccasin": "ortools"}  # modules that strategies need beside those of the extra `plan`
FAR = 0.01  # share of the step's time: a larger gap is worth further models
REPEATED = 3  # least number of instances of one block for which plans of blocks are worth computing

When = Callable[[StepInstance, Request, Context], bool]


class Step(msgspec.Struct, frozen=True):
    """A step of a policy.

    Attributes:
        name: A strategy or a bound.
        when: Returns whether to run it; by default it always runs.
        share: Share of the effort of local search.
    """

    name: str
    when: When | None = None
    share: float = 1.0


class Policy(msgspec.Struct, frozen=True):
    """Which strategies and bounds a search uses.

    Attributes:
        name: The name in requests.
        steps: In order.
        smallest: Strategies that propose their smallest peak if nothing fits.
        finish: Steps that improve on the result.
        names: Strategies whose schedules count; None for all.
        reorders: Whether some strategies change the order of first executions. Then bounds for the step's own order are
            skipped.
        fast: Strategies that run if a limit in seconds ended the search before a schedule fitted.
        each: Strategies that run first, each in a search of its own. Only `standalone_graphs` runs those that reorder.
        solvers: Solvers that the user chose.
    """

    name: str
    steps: tuple[Step, ...]
    smallest: tuple[Step, ...]
    finish: tuple[Step, ...] = ()
    names: frozenset[str] | None = None
    reorders: bool = False
    each: tuple[str, ...] = ()
    fast: tuple[Step, ...] = ()
    solvers: Solvers = DEFAULT


def tiny(instance: StepInstance, request: Request, context: Context) -> bool:
    return len(instance.problem.forward) <= TINY


def small(instance: StepInstance, request: Request, context: Context) -> bool:
    return len(instance.problem.forward) <= SMALL


def blocks_repeat(instance: StepInstance, request: Request, context: Context) -> bool:
    shapes = Counter(form(instance.graph, leaf).key for leaf in instance.leaves)
    return max(shapes.values(), default=0) >= REPEATED


def worth_levels(instance: StepInstance, request: Request, context: Context) -> bool:
    """Return whether a tree of parts may improve on the best schedule.

    If blocks repeat, `hierarchical` has chosen among their plans already.
    """
    fits = context.best is not None and len(instance.problem.forward) <= LEVELLED
    return fits and not blocks_repeat(instance, request, context)


def no_model_fits(instance: StepInstance, request: Request, context: Context) -> bool:
    return "flat" not in context.fitted


def worth_chaining(instance: StepInstance, request: Request, context: Context) -> bool:
    """Return whether the chain of a large step may have a schedule where no model has one, although its blocks differ.

    Where blocks repeat, `rockmate` has run already.
    """
    large = len(instance.problem.forward) > LARGE
    return large and no_model_fits(instance, request, context) and not blocks_repeat(instance, request, context)


def worth_checkpointing(instance: StepInstance, request: Request, context: Context) -> bool:
    """Return whether whole blocks may be better than the plans of repeated blocks: on large steps with a large gap."""
    return len(instance.problem.forward) > LARGE and _open(instance, context, request.effort.close)


def worth_states(instance: StepInstance, request: Request, context: Context) -> bool:
    """Return whether a search over states may improve on the best schedule.

    On a large step, where it takes longest, it is skipped if the dynamic program of the chain fits and is not far from
    the bound.
    """
    chained = "rockmate" in context.fitted and len(instance.problem.forward) > LARGE
    return no_model_fits(instance, request, context) and not (chained and not _open(instance, context, CHAINED))


def worth_squeezing(instance: StepInstance, request: Request, context: Context) -> bool:
    """Return whether no model fits, and other schedules are not near the bound."""
    return no_model_fits(instance, request, context) and _open(instance, context, request.effort.close)


def far_from_proof(instance: StepInstance, request: Request, context: Context) -> bool:
    return _open(instance, context, FAR)


def _open(instance: StepInstance, context: Context, share: float) -> bool:
    """Return whether no schedule fits that is proven to be within a share of the step's time from the fastest."""
    best = context.best
    return best is None or best.time - context.bound > share * instance.baseline.time


def nothing_fits(instance: StepInstance, request: Request, context: Context) -> bool:
    return context.best is None


AUTO = Policy(
    "auto",
    (
        Step("cut"),
        Step("exact", tiny),
        Step("states", tiny),
        Step("hierarchical", blocks_repeat),
        Step("rockmate", blocks_repeat),
        Step("checkpoint-blocks", worth_checkpointing),
        Step("polish"),
        Step("flat"),
        Step("growing-cuts", far_from_proof),
        Step("greedy", small),
        Step("recreate", small, 0.25),
        Step("rockmate", worth_chaining),
        Step("hiremate", worth_levels),
        Step("cuts"),
        Step("passes", far_from_proof),
        Step("anneal"),
        Step("recreate", small, 0.5),
        Step("beam", worth_states),
        Step("flat-squeeze", worth_squeezing),
        Step("greedy", nothing_fits),
        Step("rotor", nothing_fits),
        Step("chen-sqrt", nothing_fits),
        Step("treewidth", nothing_fits),
    ),
    smallest=(
        Step("exact", tiny),
        Step("flat-squeeze"),  # before the beam, which takes long where nothing fits
        Step("beam"),
        Step("anneal"),
        Step("greedy"),
        Step("rotor"),
        Step("chen-sqrt"),
        Step("treewidth"),
    ),
    fast=(Step("greedy", small), Step("chen-sqrt"), Step("rotor"), Step("greedy")),
    finish=(Step("polish"), Step("recreate", share=0.25)),
    each=("fastsa",),
)


def portfolio() -> Policy:
    """Return the policy of all strategies, each in a search of its own, followed by `AUTO`.

    It is never worse than any single strategy with the same effort. Strategies whose extra is not installed are left
    out.
    """
    lacking = {name for name, module in EXTRA.items() if find_spec(module) is None}
    each = tuple(name for name in registry.strategy_names() if name not in lacking)
    return msgspec.structs.replace(AUTO, name=PORTFOLIO, each=each)


def policy(text: str) -> Policy:
    """Return the policy of this name.

    Args:
        text: "auto", "portfolio", or a strategy, maybe with solvers: "hiremate[leaf=checkmate]". A single strategy runs
            after the bound of one cut.

    Raises:
        UnknownNameError: There is no such strategy or solver.
    """
    name, solvers = named_solvers(text)
    if name in (AUTO.name, PORTFOLIO) and not solvers.changed:
        return AUTO if name == AUTO.name else portfolio()
    if name in (AUTO.name, PORTFOLIO):
        raise UnknownNameError(f"{name} has no options for solvers\n  hint: {_with_options()}")
    names = registry.strategy_names()
    if name not in names:
        raise UnknownNameError(
            f"there is no strategy {name[:80]!r}\n  hint: one of {', '.join((AUTO.name, PORTFOLIO, *names))}"
        )
    named = registry.strategy(name)  # a strategy of another package may fail to load
    _check_solvers(named, solvers)
    chosen = msgspec.structs.replace(alone(name), reorders=True) if named.reorders else alone(name, "cut")
    return msgspec.structs.replace(chosen, solvers=solvers)


def _check_solvers(named: Strategy, solvers: Solvers) -> None:
    """Raise UnknownNameError for options that a strategy does not use, and for solvers that do not exist."""
    for option, value in solvers.changed.items():
        if option not in named.options:
            raise UnknownNameError(f"the strategy {named.name!r} has no option {option!r}\n  hint: {_with_options()}")
        if option in ("leaf", "inner"):
            registry.strategy(value)
        if option == "tree" and value not in TREES:
            raise UnknownNameError(f"there is no tree {value!r}\n  hint: one of {', '.join(TREES)}")
        if option == "milp":
            from .milp.pyomo_model import available

            available(value)


def _with_options() -> str:
    users = {name: registry.strategy(name).options for name in registry.STRATEGIES}
    texts = (f"{name} ({', '.join(sorted(options))})" for name, options in users.items() if options)
    return f"these strategies have options: {', '.join(texts)}"


def alone(name: str, *bounds: str) -> Policy:
    """Return the policy of one strategy, after these bounds."""
    steps = (*(Step(bound) for bound in bounds), Step(name))
    return Policy(name, steps, smallest=(Step(name),), names=frozenset({BASELINE, name}))


def resolved(step: Step) -> Strategy | Bound:
    """Return the strategy or bound of a step."""
    own = step.name in registry.STRATEGIES  # checked first, because names of other packages are read from the disk
    return registry.strategy(step.name) if own or not registry.is_bound(step.name) else registry.bound(step.name)
