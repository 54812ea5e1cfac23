"""The error of a command that was called wrongly."""

from __future__ import annotations

import shlex

from remate_runtime.errors import RemateError


class UsageError(RemateError):
    """Wrong arguments, or a user's file that is missing or fails."""


def replan_command(path: str, model: str) -> str:
    """What to type where `model`, FILE.py:build, is not the one of the schedule at `path` any more."""
    return f"remate replan {shlex.quote(path)} --model {shlex.quote(model)}"


def stale_hint(path: str, model: str) -> str:
    """Both commands that help: the one that carries the plan over, and the one that solves."""
    rebind = f"remate rebind {shlex.quote(path)} --model {shlex.quote(model)}"
    return f"{rebind} carries the plan over without solving; {replan_command(path, model)} solves again"
