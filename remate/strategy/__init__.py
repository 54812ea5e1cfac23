"""Strategies propose plans for a costed step and a budget; bounds prove lower limits of time and peak.

`solve` takes a `StepInstance` (the step), a `Request` (budget, gap, effort) and a `Policy`: which strategies and bounds
run, in which order (`portfolio.AUTO`, or a single strategy). All strategies have the same contract (`base`): they
propose recomputations, and one simulator judges them. `solve` keeps the best schedule and stops as soon as a bound
proves that it is close enough to the fastest one.

ADDING.md, beside this file, explains how to add a strategy here or in another package.
"""

from .base import BASELINE, Bound, Candidate, Context, Proposal, Proposals, Request, Strategy
from .deadline import Deadline
from .effort import EFFORTS, NORMAL, QUICK, THOROUGH, Effort, effort_named, shared_effort
from .instance import StepInstance
from .needs import lacking
from .pool import CandidatePool, made_by
from .portfolio import AUTO, Policy, Step, alone, policy
from .solve import Solution, candidates, solve
from .solver_choice import Solvers, with_solvers

__all__ = [
    "AUTO",
    "BASELINE",
    "EFFORTS",
    "NORMAL",
    "QUICK",
    "THOROUGH",
    "Bound",
    "Candidate",
    "CandidatePool",
    "Context",
    "Deadline",
    "Effort",
    "Policy",
    "Proposal",
    "Proposals",
    "Request",
    "Solution",
    "Solvers",
    "Step",
    "StepInstance",
    "Strategy",
    "alone",
    "candidates",
    "effort_named",
    "lacking",
    "made_by",
    "policy",
    "shared_effort",
    "solve",
    "with_solvers",
]
