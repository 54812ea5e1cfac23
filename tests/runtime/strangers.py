"""Schedules that a stranger may have edited: operations put in front of a small model's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from msgspec.structs import replace

from remate_runtime.format.fingerprints import fingerprint
from remate_runtime.format.schedule import Constant, Operation, Schedule

from .small import Mlp, data, seeded
from .stepping import no_recomputes, schedule_of

Line = tuple[str, str, tuple[Any, ...], dict[str, Any], Any]  # id, operator, args, kwargs, out


def model() -> Any:
    """Two linear layers; parameters `a.weight` f32[32,8], `a.bias` f32[32], input `x` f32[4,8]."""
    return seeded(Mlp())


def inputs() -> torch.Tensor:
    return data(4, 8)


@cache
def own() -> Schedule:
    """The model's schedule, captured once for all that is put in front of it."""
    return schedule_of(model(), (inputs(),), recomputes=no_recomputes)


def edited(
    *lines: Line, constants: dict[str, Constant] | None = None, namespaces: Sequence[str] = (), after: bool = False
) -> Schedule:
    """The model's schedule with these operations before its own, or after those of forward."""
    schedule = own()
    ((name, block),) = schedule.blocks.items()
    result = tuple(Operation(id=i, op=op, args=args, kwargs=kwargs, out=out) for i, op, args, kwargs, out in lines)
    forward = (*block.forward, *result) if after else (*result, *block.forward)
    block = replace(block, forward=forward, constants=constants or {})
    changed = replace(schedule, blocks={name: block}, namespaces=tuple(namespaces))
    return replace(changed, model=replace(changed.model, fingerprint=fingerprint(changed)))


def line(op: str, *args: Any, out: Any, id: str = "bad", **kwargs: Any) -> Line:
    return id, op, args, kwargs, out
