"""Adds up what became of many models, as a table."""

from __future__ import annotations

from collections import Counter

from .trial import Trial

_SHOWN = 8  # reasons


class Totals:
    """Counts of all trials."""

    def __init__(self) -> None:
        self.models: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.findings: Counter[str] = Counter()

    def add(self, trial: Trial) -> None:
        """Count a model."""
        self.models["all"] += 1
        if trial.rejected:
            self.models["rejected"] += 1
        elif trial.refused:
            self.models["refused"] += 1
            self.reasons[f"planning: {trial.refused}"] += 1
        elif trial.planned:
            self.models["planned"] += 1
        self.runs += trial.runs
        self.reasons += Counter({f"running: {reason}": count for reason, count in trial.reasons.items()})
        if trial.finding:
            self.findings[trial.finding.kind] += 1

    def table(self) -> str:
        """The counts, and why planning or a run was refused most often."""
        rows = [
            ("models", self.models["all"]),
            ("  not a model: eager PyTorch fails", self.models["rejected"]),
            ("  planning refused", self.models["refused"]),
            ("  planned", self.models["planned"]),
            ("runs compared", self.runs["equal"] + self.runs["rounding"] + self.findings["silent"]),
            ("  equal to the bit", self.runs["equal"]),
            ("  equal but for rounding", self.runs["rounding"]),
            *sorted((f"runs {name}", count) for name, count in self.runs.items() if name not in ("equal", "rounding")),
            ("silent differences", self.findings["silent"]),
            ("crashes", self.findings["crash"]),
        ]
        lines = [f"{name:40}{count:8}" for name, count in rows]
        reasons = [f"{count:6}  {reason}" for reason, count in self.reasons.most_common(_SHOWN)]
        return "\n".join([*lines, *(["why not:", *reasons] if reasons else [])])
