"""The time of one step of a pipeline, and a lower limit of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from .order import Action, PipelineOrder
from .stage_use import StageUse


class StageTimes(msgspec.Struct, frozen=True):
    """Times of a stage for one microbatch in ns."""

    forward: int
    backward: int

    @classmethod
    def of(cls, use: StageUse) -> StageTimes:
        return cls(use.forward, use.backward)


class PipelineGraph:
    """The actions of a pipeline step and what each one waits for.

    An action waits for the previous one of its rank. A forward also waits for that of the previous stage, and a
    backward for that of the next stage. Transfers take no time.
    """

    def __init__(self, order: PipelineOrder) -> None:
        self.order = order
        self._position = {action: at for at, action in enumerate(a for row in order.ranks for a in row)}
        self._actions = list(self._position)
        self._before = [self._waits_for(action) for action in self._actions]
        previous = {after: before for row in order.ranks for before, after in itertools.pairwise(row)}
        for action, before in previous.items():
            self._before[self._position[action]].append(self._position[before])
        self._sorted = self._topological()

    def time(self, times: Mapping[int, StageTimes]) -> int:
        """Return the time of the step. `times` is by stage."""
        return max(self._finish(times), default=0)

    def lower_bound(self, baseline: Mapping[int, StageTimes], least: Mapping[int, int]) -> int:
        """Return a time that no plans of the stages can beat.

        No action is faster than in the baseline, and a rank needs at least `least` for each microbatch of its stages.
        It can begin only after its first action could begin, and the others need some time after its last one.

        Args:
            baseline: By stage, times without recomputation.
            least: By stage, a lower limit of forward and backward together.
        """
        finish, tail = self._finish(baseline), self._tails(baseline)
        bound = max(finish, default=0)
        for rank, row in enumerate(self.order.ranks):
            if not row:
                continue
            first, last = self._position[row[0]], self._position[row[-1]]
            begins = finish[first] - self._takes(row[0], baseline)
            work = self.order.microbatches * sum(least[stage] for stage in self.order.stages_of(rank))
            bound = max(bound, begins + work + tail[last])
        return bound

    def _takes(self, action: Action, times: Mapping[int, StageTimes]) -> int:
        if action.kind == "F":
            return times[action.stage].forward
        return times[action.stage].backward if action.is_backward else 0

    def _waits_for(self, action: Action) -> list[int]:
        stage, number = action.stage, action.microbatch
        wanted: list[Action] = []
        if action.kind == "F":
            wanted = [Action(stage - 1, "F", number)]
        elif action.kind in ("B", "I"):
            wanted = [Action(stage, "F", number), Action(stage + 1, "B", number), Action(stage + 1, "I", number)]
        return [self._position[other] for other in wanted if other in self._position]

    def _topological(self) -> list[int]:
        order: list[int] = []
        state = [0] * len(self._actions)
        for start in range(len(self._actions)):
            stack = [start]
            while stack:
                at = stack[-1]
                if state[at] == 0:
                    state[at] = 1
                    stack += [before for before in self._before[at] if state[before] == 0]
                else:
                    stack.pop()
                    if state[at] == 1:
                        state[at] = 2
                        order.append(at)
        return order

    def _finish(self, times: Mapping[int, StageTimes]) -> list[int]:
        finish = [0] * len(self._actions)
        for at in self._sorted:
            begins = max((finish[before] for before in self._before[at]), default=0)
            finish[at] = begins + self._takes(self._actions[at], times)
        return finish

    def _tails(self, times: Mapping[int, StageTimes]) -> Sequence[int]:
        """Return for each action the least time from its end to the end of the step."""
        tail = [0] * len(self._actions)
        for at in reversed(self._sorted):
            through = tail[at] + self._takes(self._actions[at], times)
            for before in self._before[at]:
                tail[before] = max(tail[before], through)
        return tail
