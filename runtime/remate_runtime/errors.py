"""The exceptions and warnings of the runtime."""

from __future__ import annotations

from collections.abc import Iterable

from .support.plain_text import plain, plain_lines

REPLAN = "plan the model again (remate replan S.json --model FILE.py:build)"  # what helps against a stale schedule
REBIND = "keep the plan where the step is the same (remate rebind, with the same arguments)"


class RemateError(Exception):
    """Base of all errors that remate raises deliberately. Its text is safe to print for any file or model."""

    def __str__(self) -> str:
        return plain_lines(super().__str__())


class MissingExtraError(RemateError, ImportError):
    """A feature needs libraries that are not installed. extras: extras of the distribution `remate` that contain
    them."""

    def __init__(self, message: str, extras: tuple[str, ...]) -> None:
        self.extras = extras
        super().__init__(message)


class ScheduleError(RemateError):
    """A schedule file that cannot be used.

    Attributes:
        code: Stable code such as `R012` (documented in schema/errors.md).
        where: JSON pointer (`/blocks/B/forward/3/op`), or "" for the whole file.
        hint: What to do.
        line: 1-based; 0 if the text is not available.
        column: 1-based; 0 if the text is not available.
        file: The path that was read; "" without one.
    """

    file = ""

    def __init__(
        self, code: str, message: str, where: str = "", hint: str = "", line: int = 0, column: int = 0
    ) -> None:
        self.code, self.message, self.where, self.hint, self.line, self.column = (
            code,
            message,
            where,
            hint,
            line,
            column,
        )
        super().__init__(self._text())

    def _text(self) -> str:
        place = [f"line {self.line}:{self.column}"] if self.line else []
        place += [plain(self.where)] if self.where else []
        at = f" at {', '.join(place)}" if place else ""
        return f"{self.code}{at}: {plain(self.message)}" + (f"\n  hint: {plain(self.hint)}" if self.hint else "")

    @property
    def faults(self) -> tuple[ScheduleError, ...]:
        """All faults: this one, unless it is a ScheduleFaultsError."""
        return (self,)


class ScheduleFaultsError(ScheduleError):
    """Several faults in one file. The code, place and hint are those of the first."""

    def __init__(self, faults: Iterable[ScheduleError]) -> None:
        self._faults = tuple(faults)
        first = self._faults[0]
        super().__init__(first.code, first.message, first.where, first.hint, first.line, first.column)

    def _text(self) -> str:
        shown = "\n".join(str(fault) for fault in self._faults[:20])
        more = len(self._faults) - 20
        return shown + (f"\n… and {more} more faults" if more > 0 else "")

    @property
    def faults(self) -> tuple[ScheduleError, ...]:
        return self._faults


class BindError(RemateError):
    """The live model, or its inputs, are not what the schedule was planned for."""


class StaleModelError(BindError):
    """The live model has different code, attributes or hooks than the planned model.

    Attributes:
        numbers: Paths of attributes whose number changed. They can be planned as live.
        constants: Whether tensors changed that a step has as constants, because the model does not register them.
        differences: What the self-check of a call lists; "" if the error has another reason.
    """

    def __init__(
        self, message: str, numbers: Iterable[str] = (), constants: bool = False, differences: str = ""
    ) -> None:
        super().__init__(message)
        self.numbers, self.constants, self.differences = tuple(numbers), constants, differences


class StaleModelWarning(UserWarning):
    """Something may make a schedule stale and cannot be decided without running it, or was requested as a warning."""


class SteppedAsideWarning(UserWarning):
    """The model's own forward ran in place of the schedule: the result is correct, the memory budget does not hold."""


class EngineError(RemateError):
    """An engine that does not exist, or that cannot execute this step."""


class ExecutionError(RemateError):
    """The step cannot continue: values were changed or freed between forward and backward."""
