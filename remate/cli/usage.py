"""The error of a command that was called wrongly."""

from __future__ import annotations

from remate_runtime.errors import RemateError


class UsageError(RemateError):
    """Wrong arguments, or a user's file that is missing or fails."""
