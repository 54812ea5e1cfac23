"""Plans that keep as little as possible between forward and backward: backward begins with another forward.

A plan with a small peak keeps what its backward reads first, because one step alone gains nothing by its recomputation.
A pipeline holds that once for each microbatch in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

from remate_runtime.flat_step import FlatRecompute

from ..strategy import StepInstance
from ..strategy.local.polish import as_late_as_possible, pruned


def with_forward_again(instance: StepInstance, recomputes: Sequence[FlatRecompute]) -> tuple[FlatRecompute, ...]:
    """Return a plan that runs forward again when backward starts, and then goes on like the given plan.

    Results that the given plan does not read are not computed again.

    Args:
        instance: The step.
        recomputes: The recomputations of the plan.
    """
    problem, start = instance.problem, instance.problem.backward_start
    returned = {problem.producer[storage] for storage in problem.returned}
    ops = (at for at in problem.forward if at not in instance.once and at not in returned)
    again = [FlatRecompute(at, start) for at in ops]
    every = sorted([*again, *recomputes], key=lambda recompute: recompute.before)  # stable
    return tuple(as_late_as_possible(problem, pruned(problem, every)))
