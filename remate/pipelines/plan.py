"""The plan of a pipeline: a schedule for each stage, and figures of the ranks and of the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from remate_runtime.format import Schedule
from remate_runtime.support.quantities import size

from ..errors import InfeasibleError


class RankSummary(msgspec.Struct, frozen=True):
    """The memory of a rank over a step of the pipeline.

    Attributes:
        rank: The rank.
        stages: Its stages.
        peak: Predicted peak in bytes, beside parameters, buffers of the model, the optimizer's state and the inputs of
            the first stage.
        buffers: Bytes of it in torch's buffers for inputs and gradients. They exist from the first step on.
        baseline_peak: The peak without recomputation.
    """

    rank: int
    stages: tuple[int, ...]
    peak: int
    buffers: int
    baseline_peak: int


class PipelinePlan(msgspec.Struct, frozen=True):
    """Schedules for the stages of a pipeline.

    Attributes:
        schedule: Name of torch's pipeline schedule.
        microbatches: Number of microbatches of a step.
        budget: Bytes of each rank.
        ranks: The memory of each rank.
        in_flight: By stage, the most microbatches between forward and backward.
        time: Predicted time of a step in ns, without transfers.
        baseline_time: The time without recomputation.
        lower_bound: A proven lower limit of the time within the budget.
        schedules: By stage, the schedule.
    """

    schedule: str
    microbatches: int
    budget: int
    ranks: tuple[RankSummary, ...]
    in_flight: tuple[int, ...]
    time: int
    baseline_time: int
    lower_bound: int
    schedules: tuple[Schedule, ...] = ()

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self.schedules)

    def __len__(self) -> int:
        return len(self.schedules)

    def __getitem__(self, stage: int) -> Schedule:
        return self.schedules[stage]

    @property
    def gap(self) -> float:
        """The difference between time and lower bound, as a share of the time without recomputation."""
        return (self.time - self.lower_bound) / max(1, self.baseline_time)

    def note(self, stage: int) -> str:
        """Return a remark for the file of a stage."""
        rank = next(rank for rank in self.ranks if stage in rank.stages)
        return (
            f"stage {stage} of {len(self.in_flight)} under {self.schedule}, {self.microbatches} microbatches, at most "
            f"{self.in_flight[stage]} in flight: rank {rank.rank} peaks at {size(rank.peak)} of {size(self.budget)}"
        )

    def save(self, folder: str | Path) -> None:
        """Write one file for each stage, by the names of the schedules, into a folder. The folder is created."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        for schedule in self.schedules:
            schedule.save(str(Path(folder) / f"{schedule.name}.json"))


class RankDoesNotFitError(InfeasibleError):
    """The stages of a rank have no schedules within the budget. All figures are bytes.

    Attributes:
        rank: The rank.
        stages: Its stages.
        by_rank: The smallest peak that was found for each rank. The largest of them is the least budget.
    """

    def __init__(
        self, rank: int, stages: Sequence[Sequence[int]], budget: int, by_rank: Sequence[int], floor: int
    ) -> None:
        super().__init__(budget, max(by_rank), floor)
        self.rank, self.stages, self.by_rank = rank, tuple(stages[rank]), tuple(by_rank)
        smallest, own = max(by_rank), by_rank[rank]
        listed = "".join(
            f"\n  - rank {at} ({_named(of)}): smallest peak found {size(least)}"
            for at, (of, least) in enumerate(zip(stages, by_rank, strict=True))
        )
        self.args = (
            f"rank {rank} ({_named(stages[rank])}) cannot be planned within {size(budget)}: "
            f"{'no schedules can' if budget < floor else 'none were found that do'}; proven floor {size(floor)}, "
            f"smallest peak found {size(own)}{listed}\n  hint: "
            f"ask for at least {smallest} bytes, the largest of these, "
            "use smaller microbatches, or move layers to another stage",
        )


def _named(stages: Sequence[int]) -> str:
    return f"stage {stages[0]}" if len(stages) == 1 else f"stages {', '.join(map(str, stages))}"
