"""Where a warning belongs: at the line of the user that called the model, however many frames of libraries lie
between."""

from __future__ import annotations

import sys

_INNER = ("remate", "remate_runtime", "torch", "contextlib")


def frames_to_caller() -> int:
    """The `stacklevel` of a warning that the calling function gives, for the first frame outside remate and PyTorch."""
    frame, count = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _INNER:
        frame, count = frame.f_back, count + 1
    return count
