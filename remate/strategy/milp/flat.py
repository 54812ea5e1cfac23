"""The flat strategy: every forward storage is kept from forward to backward, or its operation runs again there.

What crosses the boundary of a segment is kept, so that each rerun's window stays inside the backward of its segment:
nearly free where boundaries are small (transformers), costly where they are large and cheap to make again
(convolutional nets, see `staged`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..problem import Problem
from .segments import Segments, segments
from .windows import RerunWindows, windows

LENGTH = 32  # operations in a segment: about one attention or feed-forward layer with its norms


def flat_windows(problem: Problem, length: int = LENGTH) -> RerunWindows:
    """RerunWindows of the flat model."""
    cut = segments(problem, length)
    return windows(problem, cut.stage, allowed_stages(problem, cut, 0, cut.boundary))


def allowed_stages(
    problem: Problem, cut: Segments, above: int, kept: frozenset[int] = frozenset()
) -> Mapping[int, set[int]]:
    """Stages in which each forward operation may rerun: where backward, or an operation that reruns there, reads what
    it makes, and up to `above` stages earlier. Operations that make only `kept` storages never rerun."""
    natural: dict[int, set[int]] = {}
    for f in reversed(problem.forward):
        outputs = [s for s in problem.writes[f] if s not in kept and s not in problem.pinned]
        stages = {
            k
            for s in outputs
            for i in problem.readers[s]
            for k in ((cut.stage[i - problem.backward_start],) if i >= problem.backward_start else natural.get(i, ()))
        }
        if above == 0:
            if stages:
                natural[f] = stages
            continue
        own = len(cut.ends) - 1 - cut.of[f]
        if stages:
            natural[f] = {k for k in stages if k >= own - above}
    return natural
