"""Attributes warnings to the line of the user that called the model, across frames of libraries."""

from __future__ import annotations

from inspect import currentframe

_INNER = ("remate", "remate_runtime", "torch", "contextlib")


def frames_to_caller() -> int:
    """Return the `stacklevel` for a warning of the calling function: the first frame outside remate and PyTorch."""
    frame, count = currentframe(), 0
    while frame and frame.f_back and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _INNER:
        frame, count = frame.f_back, count + 1
    return count
