"""The fingerprint of a schedule's step: a hash of everything that decides its results, and of nothing else.

The following may be edited freely: plans, costs, notes, sources, padding values, planned values of sizes and live
attributes, and module paths of a file for parts. Operations, their arguments, bindings and the signature may not: they
come from the model, and a reader refuses a file whose fingerprint does not match.
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec.structs import replace

from ..errors import REPLAN, ScheduleError
from .schedule import BASELINE, Block, Operation, Schedule


def fingerprint(schedule: Schedule) -> str:
    """Return `sha256:<hex>` over the blocks, the program and the model's signature."""
    dims = {name: replace(dim, planned=dim.min) for name, dim in schedule.model.dims.items()}
    live = {
        name: replace(attribute, planned=type(attribute.planned)(0)) for name, attribute in schedule.model.live.items()
    }
    step = {
        "model": replace(schedule.model, fingerprint="", dims=dims, live=live, fill={}, at=(), calls=1, note=""),
        "blocks": {name: _bare(block) for name, block in schedule.blocks.items()},
        "program": [replace(instance, plan=BASELINE, note="") for instance in schedule.program],
    }
    return "sha256:" + hashlib.sha256(msgspec.json.encode(step, order="sorted")).hexdigest()


def check_fingerprint(schedule: Schedule) -> None:
    """Raise ScheduleError R083 if the step was edited after planning."""
    if fingerprint(schedule) != schedule.model.fingerprint:
        raise ScheduleError(
            "R083",
            "operations, bindings or signature differ from those that the fingerprint was made of",
            "/model/fingerprint",
            f"restore them from version control, or {REPLAN}; plans, recomputations and notes may be "
            "edited, and `remate edit S.json --range b=2..16` narrows the range of a size",
        )


def _bare(block: Block) -> Block:
    return replace(
        block,
        forward=tuple(_step(op) for op in block.forward),
        backward=tuple(_step(op) for op in block.backward),
        instances=tuple(replace(i, plan=BASELINE, note="") for i in block.instances),
        constants={name: replace(c, note="") for name, c in block.constants.items()},
        plans={},
        note="",
    )


def _step(op: Operation) -> Operation:
    return replace(op, workspace=0, source="", note="")
