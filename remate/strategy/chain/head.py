"""Chains whose last stage is cut in two, before or after the inputs of the loss, where the loss takes nearly the whole
budget.

A stage holds its input until its own backward. So the stage of the final norm, the product with the vocabulary and the
loss holds the last layer's output at the worst moment of the loss, when few such values fit. If that stage is cut in
two, it need not hold the input of the norm, which is computed again from a lower value after that moment.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..bound.floor import arguments, forced_bytes
from ..instance import StepInstance
from .chain import Chain

SCARCE = 0.75  # share of the budget that the worst moment of the backward takes in any plan


def cut_heads(instance: StepInstance, budget: int) -> tuple[Chain, ...]:
    """Return such chains of a step with blocks.

    The result is empty if the worst moment leaves much of the budget, or is not in the last block.
    """
    problem = instance.problem
    if not instance.blocks or not problem.backward:
        return ()
    forced = forced_bytes(problem)
    read = {i: arguments(problem, i) for i in problem.backward}
    level = {i: int(forced[i]) + sum(problem.size[s] for s in read[i]) for i in problem.backward}
    worst = max(problem.backward, key=lambda i: (level[i], -i))
    last = instance.leaves[-1]
    if level[worst] < SCARCE * budget or not read[worst] or not last.backward[0] <= worst < last.backward[1] - 1:
        return ()
    producer = problem.producer[max(read[worst], key=lambda s: (problem.size[s], s))]
    places = [at for at in (producer, producer + 1) if last.forward[0] < at < last.forward[1]]
    return tuple(instance.view(_cut, at, worst + 1) for at in places)


def _cut(instance: StepInstance, forward: int, backward: int) -> Chain:
    """Return the chain with its last block cut at these operations."""
    *blocks, last = instance.leaves
    lower = replace(last, forward=(last.forward[0], forward), backward=(backward, last.backward[1]))
    upper = replace(last, forward=(forward, last.forward[1]), backward=(last.backward[0], backward))
    return Chain(instance.problem, (*blocks, lower, upper))
