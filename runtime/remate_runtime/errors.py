"""The exceptions of remate_runtime. Every one tells what was wrong, where, and what to do."""

from __future__ import annotations


class RemateError(Exception):
    """Base of every error that remate raises on purpose."""


class ScheduleError(RemateError):
    """A schedule file that cannot be used.

    code: stable code such as `R012` (documented in schema/errors.md). where: JSON pointer (`/blocks/B/forward/3/op`)
    or "" for the whole file. hint: what to do.
    """

    def __init__(self, code: str, message: str, where: str = "", hint: str = "") -> None:
        self.code, self.message, self.where, self.hint = code, message, where, hint
        at = f" at {where}" if where else ""
        super().__init__(f"{code}{at}: {message}" + (f"\n  hint: {hint}" if hint else ""))


class BindError(RemateError):
    """The live model, or its inputs, are not what the schedule was planned for."""


class ExecutionError(RemateError):
    """The step cannot go on: values were changed or freed between forward and backward."""
