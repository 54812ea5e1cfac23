"""The configurations of one model: planned side by side, set up a few at a time, measured in turns. Standard library
alone."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .process import Process

_AT_CHECKPOINT = "remate=checkpoint"
CONFIGURATIONS = (
    "eager",
    "checkpoint",
    "compile",
    "compile=0.5",
    "compile=0.1",
    "remate=100%",
    "remate=60%",
    "remate-elsewhere=60%",  # planned without the GPU
    "remate=40%",
    "remate-compiled=60%",
    "remate-compiled=40%",
    "remate-graphs=60%",
    "remate-split=40%",
    "remate-pages=40%",
    _AT_CHECKPOINT,  # at the peak that checkpointing per block was measured at
)
STEPS = 3  # timed, whenever a configuration has its turn
ROUNDS = 12
_SETUP = 0.75  # of the time that a model is given


@dataclass
class Outcome:
    """facts: what the worker said of itself. times: ms of every timed step, by round. issued: ms until Python had
    issued each. failure: why there is no more."""

    configuration: str
    facts: dict[str, Any] = field(default_factory=dict)
    times: list[list[float]] = field(default_factory=list)
    issued: list[list[float]] = field(default_factory=list)
    failure: str = ""

    @property
    def median(self) -> float:
        """Milliseconds of a step."""
        return statistics.median([taken for backward_start in self.times for taken in backward_start])

    def over(self, eager: Outcome | None) -> tuple[float, float, float] | None:
        """Quartiles of the time over eager's, round by round."""
        if eager is None or not self.times or not eager.times:
            return None
        ratios = [
            statistics.median(ours) / statistics.median(base)
            for ours, base in zip(self.times, eager.times, strict=False)
        ]
        if len(ratios) == 1:
            return ratios[0], ratios[0], ratios[0]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return low, middle, high


class Contest:
    """options: of every worker (`--device cuda`). say: is reported what happens."""

    def __init__(
        self,
        model: str,
        only: Sequence[str],
        options: Sequence[str],
        environment: Mapping[str, str],
        work: Path,
        say: Callable[[str], None],
    ) -> None:
        self.model, self._only, self._say, self._work = model, list(only), say, work
        self._environment = dict(environment)
        self._options = [*options, "--profile", str(work / f"{model}.profile.json")]
        self._workers: dict[str, Process] = {}
        self.outcomes: dict[str, Outcome] = {}

    def run(self, until: float) -> dict[str, Outcome]:
        """All configurations, measured before `until` (on the clock of time.monotonic); partial where time runs out."""
        ready = time.monotonic() + _SETUP * (until - time.monotonic())
        try:
            if any(name.startswith("remate") for name in self._only):
                self._start("profile", "profile")  # alone on the device: it measures costs
                self._hear(["profile"], ready)
                self._end("profile")
            plain = [name for name in self._only if not name.startswith("remate")]
            for name in plain:
                self._start(name, name)
            for name in self._only:
                if name.startswith("remate") and name != _AT_CHECKPOINT:
                    self._start(name, name)
            if "checkpoint" in plain:
                self._hear(["checkpoint"], ready)
            if _AT_CHECKPOINT in self._only:
                self._start(_AT_CHECKPOINT, self._at_checkpoint(until))
            self._hear([name for name in self._only if name != "checkpoint"], ready)
            self._peaks(until)
            self._rotate(until)
        finally:
            for name in list(self._workers):
                self._end(name)
        return self.outcomes

    def _at_checkpoint(self, until: float) -> str:
        """The configuration with the measured peak of checkpointing, if there is one."""
        measured = self._ask("checkpoint", "peak", until) if "checkpoint" in self._workers else {}
        return f"remate={measured['peak']}" if measured else _AT_CHECKPOINT

    def _start(self, name: str, configuration: str) -> None:
        self.outcomes[name] = Outcome(name)
        if configuration == _AT_CHECKPOINT:
            self.outcomes[name].failure = "there is no peak of checkpointing to plan for"
            return
        command = [sys.executable, "-m", "tools.bench.cuda.worker", self.model, configuration, *self._options]
        log = self._work / f"{self.model}.{name.replace('%', '')}.log"
        self._workers[name] = Process(command, self._environment, Path(__file__).parents[3], log)
        self._workers[name].tell("setup")

    def _hear(self, names: Sequence[str], until: float) -> None:
        """Wait for those that are setting up."""
        for name in names:
            if name in self._workers:
                self._take(name, self._workers[name].hear(until))
                facts = self.outcomes[name].facts
                self._say(f"{self.model} {name}: " + (f"ready after {facts['seconds']:.0f} s" if facts else "failed"))

    def _ask(self, name: str, command: str, until: float) -> dict[str, Any]:
        worker = self._workers[name]
        worker.tell(command)
        answer = worker.hear(until)
        self._take(name, answer if command == "peak" else {})
        return answer

    def _take(self, name: str, facts: dict[str, Any]) -> None:
        self.outcomes[name].facts.update(facts)
        if self._workers[name].failure:
            self.outcomes[name].failure = self._workers.pop(name).failure

    def _end(self, name: str) -> None:
        if name in self._workers:
            self._workers.pop(name).close()

    def _peaks(self, until: float) -> None:
        for name in list(self._workers):
            self._ask(name, "peak", until)

    def _rotate(self, until: float) -> None:
        """Every round asks each of those that still run, and starts with another one."""
        longest = 0.0
        for index in range(ROUNDS):
            started = time.monotonic()
            if started + longest > until:
                break
            names = [name for name in self._only if name in self._workers]
            at = index % max(1, len(names))
            taken = {name: self._ask(name, f"time {STEPS}", until) for name in names[at:] + names[:at]}
            if not all(taken.values()):
                continue  # a round counts for all or for none
            for name, answer in taken.items():
                self.outcomes[name].times.append(answer["ms"])
                self.outcomes[name].issued.append(answer["issued"])
            longest = max(longest, time.monotonic() - started)
