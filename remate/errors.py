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


class InfeasibleError(RemateError):
    """No schedule within the budget was found. All in bytes; budget and peaks count what the step holds beyond
    parameters, buffers, inputs and optimizer state.

    budget: what was asked. smallest: least peak found by the strategies. floor: no schedule whatever has a smaller peak.
    """

    def __init__(self, budget: int, smallest: int, floor: int) -> None:
        self.budget, self.smallest, self.floor = budget, smallest, floor
        why = "no schedule can" if budget < floor else "none was found that does"
        super().__init__(
            f"the step cannot be planned within {_mib(budget)}: {why}\n"
            f"  smallest peak found: {smallest} bytes ({_mib(smallest)}); proven floor: {floor} bytes ({_mib(floor)})\n"
            f"  hint: ask for at least {smallest} bytes, or make the step smaller (batch, sequence length)"
        )


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


class UnknownNameError(RemateError):
    """A name that stands for nothing: in a schedule, or of a strategy. The text says what may have been meant."""
