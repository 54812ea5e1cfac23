"""The caller's dispatch modes, which may change what operators compute. Forward runs in them, and so may backward."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ..torch_private.execution import dispatch_modes


def callers_modes() -> list[Any]:
    """Return the active dispatch modes that are not torch's."""
    return [mode for mode in dispatch_modes() if not type(mode).__module__.startswith("torch.")]


def warn_of_left_modes(of_forward: Sequence[Any]) -> None:
    """Warn if backward begins outside of a mode of forward: what is recomputed then runs outside of it."""
    if not of_forward:
        return
    active = dispatch_modes()
    if left := [type(mode).__qualname__ for mode in of_forward if not any(mode is other for other in active)]:
        warnings.warn(
            f"forward ran within {', '.join(left)}, and backward runs outside: so does what the schedule recomputes. "
            "If the mode changes results (rounds or replaces them), gradients are not those of the model: call "
            "backward within it, too, or use the original model",
            UserWarning,
            stacklevel=2,
        )
