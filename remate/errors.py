"""The planner's exceptions. Every one tells what was wrong, where in the user's model, and what to do."""

from __future__ import annotations

from remate_runtime.errors import RemateError


class CaptureError(RemateError):
    """A model, or a call of it, that cannot be captured as a training step.

    message: what is wrong. module: path of the module that ran (`encoder.layer.0`), "" for the root or if unknown.
    source: `file.py:line` of the user's code, "" if unknown. hint: what to do.
    """

    def __init__(self, message: str, module: str = "", source: str = "", hint: str = "") -> None:
        self.message, self.module, self.source, self.hint = message, module, source, hint
        where = ", ".join(part for part in (f"module {module!r}" if module else "", source) if part)
        super().__init__(message + (f" ({where})" if where else "") + (f"\n  hint: {hint}" if hint else ""))


class ProfileError(RemateError):
    """A cost model that does not exist here, or a profile file that cannot be used. The text says what to do."""
