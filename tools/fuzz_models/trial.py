"""What became of one generated model: each run of it is compared with eager PyTorch."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

from remate_runtime.errors import RemateError

from .comparison import Seen, differences

Result = TypeVar("Result")
_LONG = 140  # characters of a reason


@dataclass(frozen=True)
class Finding:
    """A difference without an error or a warning, or an exception that remate did not raise deliberately. what: the same for
    findings that a shrunk program may have instead."""

    kind: Literal["silent", "crash"]
    what: str
    detail: str


class Trial:
    """Counts what happens to one model.

    Attributes:
        rejected: The error of eager PyTorch, if it cannot run the model; "" otherwise.
        refused: The error that planning ended with; "" otherwise.
        planned: Whether a schedule was planned and applied.
        runs: Runs by what became of them: "equal", "rounding", "noticed TYPE", "warned", "eager fails".
        reasons: What was noticed.
        finding: The first finding, after which nothing more is run.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.rejected = self.refused = ""
        self.planned = False
        self.runs: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.finding: Finding | None = None

    def builds(self, build: Callable[[], Result]) -> Result | None:
        """Run the model in eager PyTorch for the first time. None: it is no model."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return build()
        except Exception as error:  # what the generator writes is often wrong
            self.rejected = type(error).__name__
            return None

    def plans(self, plan: Callable[[], Result]) -> Result | None:
        """Plan and apply. None: refused, or a finding."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = plan()
        except RemateError as error:
            self.refused = _reason(error)
            return None
        except Exception as error:
            self._crashed("planning", error)
            return None
        self.planned = True
        return result

    def noticed(self, error: Exception) -> None:
        """Count an error that remate raised deliberately, or a finding."""
        if isinstance(error, RemateError):
            self.runs[f"noticed {type(error).__name__}"] += 1
            self.reasons[_reason(error)] += 1
        else:
            self._crashed("running", error)

    def agrees(self, run: str, eager: Callable[[], Seen], planned: Callable[[], Seen]) -> bool:
        """Compare a run with eager PyTorch. Return whether both ended, and without a finding.

        Args:
            run: What to call this run in a finding.
            eager: The run of the model itself.
            planned: The same with a schedule.
        """
        usual: list[str] = []
        warned: list[str] = []
        try:
            with _warnings_to(usual):
                wanted = eager()
        except Exception:
            self.runs["eager fails"] += 1
            return False
        try:
            with _warnings_to(warned):
                got = planned()
        except Exception as error:
            self.noticed(error)
            return False
        return self._judged(run, wanted, got, [text for text in warned if text not in usual])

    def _judged(self, run: str, wanted: Seen, got: Seen, warned: list[str]) -> bool:
        sizes = differences(wanted, got)
        about_more = [text for text in warned if "by rounding" not in text]
        large = {name: size for name, size in sizes.items() if size > self.tolerance}
        if large and not about_more:
            name, size = next(iter(large.items()))
            self.finding = Finding("silent", "a difference", f"{run}: {name} differs by {size:.3g}")
            return False
        self.runs["warned" if large else "rounding" if sizes else "equal"] += 1
        if large:
            self.reasons[about_more[0]] += 1
        return True

    def _crashed(self, when: str, error: Exception) -> None:
        self.finding = Finding("crash", f"{type(error).__name__} in {when}", f"{type(error).__name__}: {error}")


@contextmanager
def _warnings_to(texts: list[str]) -> Iterator[None]:
    """Append what each warning says to a list."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            texts += [_reason(warning.message) for warning in caught]


def _reason(error: Exception | Warning | str) -> str:
    """The first line, and the second where the first one introduces a list; without numbers, which differ."""
    first, *others = str(error).split("\n")
    text = " ".join([first, *others[:1]]) if first.endswith((":", " in")) else first
    return re.sub(r"\d[\d.,e-]*", "#", text)[:_LONG]
