"""The exceptions of the planner."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from remate_runtime.errors import RemateError
from remate_runtime.format import fold_paths
from remate_runtime.support.quantities import size

_SHOWN = 6  # paths of one proposal


def _around(parts: Sequence[str]) -> str:
    """Return a call that plans these parts, for a hint."""
    if not parts:
        return ""
    if len(folded := fold_paths(parts)) > _SHOWN:
        return "; or plan what is around it: remate.auto(model)"
    at = json.dumps(folded[0] if len(folded) == 1 else list(folded))
    return f"; or plan what is around it: remate.plan(model, args, at={at})"


class CaptureError(RemateError):
    """A model, or a call of it, that cannot be captured as a training step.

    Attributes:
        message: What is wrong.
        module: Path of the module that ran (`encoder.layer.0`), "" for the root or if unknown.
        source: `file.py:line` of the user's code, "" if unknown.
        hint: What to do.
        parts: Paths of parts of the model that can be planned instead, as for `at=` of `remate.plan`.
        settles: Whether the step may be captured once the model has been called.
    """

    def __init__(
        self,
        message: str,
        module: str = "",
        source: str = "",
        hint: str = "",
        parts: Sequence[str] = (),
        settles: bool = False,
    ) -> None:
        self.message, self.module, self.source, self.hint = message, module, source, hint
        self.settles = settles
        self.parts = tuple(parts)
        hint += _around(parts) if hint else ""
        where = ", ".join(part for part in (f"module {module!r}" if module else "", source) if part)
        super().__init__(message + (f" ({where})" if where else "") + (f"\n  hint: {hint}" if hint else ""))


class DimsError(RemateError):
    """Sizes that a schedule cannot leave open.

    The model's step differs with them, or the request does not fit the call.

    Attributes:
        message: What is wrong.
        hint: What to do.
        works: A smaller range that can be left open, as text: `t=2..64`; "" if none is known.
    """

    def __init__(self, message: str, hint: str = "", works: str = "") -> None:
        self.message, self.hint, self.works = message, hint, works
        super().__init__(message + (f"\n  hint: {hint}" if hint else ""))


class ProfileError(RemateError):
    """A cost model that does not exist here, or a profile file that cannot be used. The text says what to do."""


class LostOutputWarning(UserWarning):
    """An output of a model that a schedule returns as None, because a file cannot hold objects of its type.

    As an error (`warnings.simplefilter("error", LostOutputWarning)`), the model is refused with a `CaptureError`.
    """


class ProfileCacheWarning(UserWarning):
    """The user's cache of measured costs cannot be read or written. Costs are measured again; nothing else is lost."""


class SplitFloor(NamedTuple):
    """A proven floor if splits are permitted: for loss heads, or for all operations. In bytes."""

    permitted: Literal["head", "all"]
    floor: int


_PERMISSIONS = {
    "head": "the loss head run in tiles, split='head' (--split head)",
    "all": "large operations run in tiles, split=True (--split all)",
}


class InfeasibleError(RemateError):
    """No schedule within the budget was found.

    All figures are bytes. Budget and peaks are beside parameters, buffers, inputs and optimizer state.

    Args:
        delivered: The floor if gradients need not be retained to the end of the step, if that is lower.
        baseline: The baseline peak; None if there is no such step.
        sizes: The sizes to plan at, if the schedule was to name sizes: `b=64, t=128`.
        estimated: Workspaces are estimates, so that the floor holds for the estimates only.

    Attributes:
        budget: The requested budget.
        smallest: The least peak that the strategies reach. They fit within it, and within every larger budget.
        floor: A proven lower limit of the peak, for all schedules.
        strategy: The requested strategy, "auto" or a name.
        struck: The time limit ended the search.
        holder: The operation that needs the floor.
        split: The floor if operations are split, if that is lower, and which ones.
    """

    def __init__(
        self,
        budget: int,
        smallest: int,
        floor: int,
        strategy: str = "auto",
        delivered: int | None = None,
        baseline: int | None = None,
        sizes: str = "",
        *,
        struck: bool = False,
        holder: str = "",
        estimated: bool = False,
        split: SplitFloor | None = None,
    ) -> None:
        self.split = split
        self._baseline, self._delivered, self.struck, self.holder = baseline, delivered, struck, holder
        self.budget, self.smallest, self.floor, self.strategy = budget, smallest, floor, strategy
        named = strategy != "auto"
        late = struck and budget >= floor
        why = (
            "no schedule can" + " if the estimated workspaces are right" * estimated
            if budget < floor
            else "none was found that does" + " within the time limit" * late
        )
        what = f"infeasible for {strategy}: " if named else ""
        who = f"smallest peak that {strategy} reaches" if named else "smallest peak found"
        share = f" ({-(-1000 * smallest // baseline) / 10:g}%)" if baseline else ""  # rounded up: it must be enough
        other = ", a longer time limit" * late + ", another strategy" * named
        if delivered is not None and delivered < floor:
            other += (
                f", or for gradients='accumulated' or 'consumed': the floor is {delivered} bytes ({size(delivered)}) "
                "if they may be accumulated in a .grad that exists, or consumed by an optimizer in backward"
            )
        if split is not None:
            other += (
                f", or let {_PERMISSIONS[split.permitted]}: the floor is {split.floor} bytes ({size(split.floor)}) then"
            )
        if estimated:
            other += (
                ", or measure what operations need (cost='measured'): "
                "estimated workspaces can be several times too large"
            )
        step, smaller = "the step", "make the step smaller (batch, sequence length)"
        if sizes:
            step, smaller = (
                f"the step at {sizes}",
                "plan at a smaller size: give the sizes smaller ranges, or a smaller example",
            )
        super().__init__(
            f"{what}{step} cannot be planned within {size(budget)}: {why}\n"
            f"  {who}: {smallest} bytes ({size(smallest)}); proven floor: {floor} bytes ({size(floor)})"
            f"{f', held at {holder}' if holder else ''}{', by estimated workspaces' if estimated else ''}\n  hint: "
            f"ask for at least {smallest} bytes{share}{other}, or {smaller}"
        )

    def at(self, sizes: str, estimated: bool = False, split: SplitFloor | None = None) -> InfeasibleError:
        """Return the error for a step that was to be planned at `sizes`.

        Args:
            sizes: The sizes as text; "" for a step of one size.
            estimated: Its costs are estimates.
            split: Its floor if operations are split, if that is lower.
        """
        details = self.strategy, self._delivered, self._baseline
        rest: dict[str, Any] = {"struck": self.struck, "holder": self.holder, "estimated": estimated, "split": split}
        return InfeasibleError(self.budget, self.smallest, self.floor, *details, sizes, **rest)


class DoesNotFitError(InfeasibleError):
    """Training does not fit a device even at the smallest size. All figures are bytes.

    Args:
        memory: Memory of the device.
        held: What stays on the device, by name.
        floor: Floor of the step.
        sizes: The smallest sizes, as text.
    """

    def __init__(self, memory: int, held: Mapping[str, int], floor: int, sizes: str) -> None:
        stays = sum(held.values())
        super().__init__(max(memory - stays, 0), floor, floor, sizes=sizes)
        kinds = ", ".join(f"{what} {size(nbytes)}" for what, nbytes in held.items() if nbytes)
        full = "is full before the step begins" if stays >= memory else f"has {size(memory - stays)} left for the step"
        self.args = (
            f"training does not fit {size(memory)} device memory even at {sizes}: the device {full}\n  on it stay: "
            f"{kinds}; the step takes at least {size(floor)} there\n  hint: a device of at least {stays + floor} bytes "
            f"({size(stays + floor)}), a smaller model, or an optimizer with less state",
        )


class NotApplicableError(RemateError):
    """A strategy that needs what a step lacks: a backward, a hierarchy of blocks, a chain of stages."""


class InstanceError(RemateError):
    """The file of a bare instance, or of its result, that cannot be used. The text says where and why."""


class UnknownNameError(RemateError):
    """An unknown name in a schedule, or of a strategy. The text suggests similar names."""
