"""The error for wrong arguments, and hints that several commands share."""

from __future__ import annotations

import shlex

from remate_runtime.errors import RemateError


class UsageError(RemateError):
    """Wrong arguments, or a user's file that is missing or fails."""


def replan_command(path: str, model: str) -> str:
    """The command that plans `model` (FILE.py:build) again for the schedule at `path`."""
    return f"remate replan {shlex.quote(path)} --model {shlex.quote(model)}"


def stale_hint(path: str, model: str) -> str:
    """A hint with both commands for a stale schedule."""
    rebind = f"remate rebind {shlex.quote(path)} --model {shlex.quote(model)}"
    return f"{rebind} transfers the plan without solving; {replan_command(path, model)} solves again"
