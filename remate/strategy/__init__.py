"""Strategies: a costed step and a budget become reruns.

`solve` takes an `Instance` (the step), a `Request` (budget, gap, effort) and a `Policy` (which strategies and bounds, in
which order: `portfolio.AUTO`, or one strategy by itself). Strategies are equals behind one contract (`base`): they propose
reruns, the one simulator judges, `solve` keeps the best and stops as soon as a bound proves that it is close enough.

How to add a strategy
---------------------
1. One file with a generator and a `Strategy`. It yields a `Proposal` of reruns and is sent back the `Candidate` that the
   simulator makes of it, whether it fits or not:

        def nothing_twice(instance, request, context):
            for f in instance.problem.forward:
                found = yield Proposal((FlatRerun(f, instance.graph.backward_start),))
                if found.peak <= request.budget:
                    return

        NOTHING_TWICE = Strategy("nothing-twice", "one operation runs again at most", nothing_twice,
                                 needs=frozenset({"backward"}))

   Count work by `request.effort`, never by seconds; look at `context.deadline.stopped()` now and then; keep what is derived
   from the step alone with `instance.view`. Asked for a budget that it cannot meet, it should come as close as it can: the
   least peak that it proposes for the proven floor is what the error names as its smallest.
2. One line in `registry.STRATEGIES`; or, in another package, an entry point in the group `remate.strategies`.
3. If it should be tried by default, one line in `portfolio.AUTO`.

The contract test runs over everything that is registered. Bounds are added in the same way (`Bound`, `registry.BOUNDS`,
`remate.bounds`): `prove` returns a time in ns that no schedule within the budget beats.
"""

from .base import KEEP_ALL, Bound, Candidate, Context, Proposal, Proposals, Request, Strategy
from .deadline import Deadline
from .effort import EFFORTS, NORMAL, QUICK, THOROUGH, Effort, effort_named
from .instance import Instance
from .pool import Pool
from .portfolio import AUTO, Policy, Step, alone, policy
from .solve import Solution, candidates, lacking, solve

__all__ = [
    "AUTO",
    "EFFORTS",
    "KEEP_ALL",
    "NORMAL",
    "QUICK",
    "THOROUGH",
    "Bound",
    "Candidate",
    "Context",
    "Deadline",
    "Effort",
    "Instance",
    "Policy",
    "Pool",
    "Proposal",
    "Proposals",
    "Request",
    "Solution",
    "Step",
    "Strategy",
    "alone",
    "candidates",
    "effort_named",
    "lacking",
    "policy",
    "solve",
]
