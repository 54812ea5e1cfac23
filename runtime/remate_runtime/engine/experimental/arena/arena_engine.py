"""The engine "arena"."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ....errors import EngineError
from ....flat_step.graph import Op
from ....link.simulator import simulate
from ....operator_calls.inferred import signature
from ....operator_calls.overloads import TORCH_DTYPES
from ....support.quantities import size
from ...compiled_step import Compile, CompiledStep, Engine, LinkedStep
from ...eager.eager_engine import compile_step
from ...eager.placed import Placed, PlacedForm, ResultPlace, Room
from ...eager.programs import Programs
from .blocks import Blocks
from .forms import form_of, strides_of
from .layout import Layout, layout, operation_at

_log = logging.getLogger(__name__)
_NAMED = 4  # operators to name


def _start() -> Compile:
    blocks, programs = Blocks(), Programs()

    def compile_(step: LinkedStep, device: torch.device) -> CompiledStep:
        _refuse(step)
        forms = _Forms(step)
        plan = layout(step.linked, forms.has, max(step.budget, simulate(step.linked).peak))
        _log_layout(plan)
        room = _room(step, device, plan, forms, blocks) if plan.addresses else None
        return compile_step(step, device, programs, room)

    return compile_


def _refuse(step: LinkedStep) -> None:
    if step.linked.graph.calls > 1:
        raise EngineError(
            "the engine 'arena' is for a step of the whole model: of a part that is called several times each call "
            "would hold a "
            "block of its own from its forward to its backward\n  use engine='eager', or plan the model as a whole"
        )
    if step.linked.paged:
        raise EngineError("the engine 'arena' does not page values, as the schedule asks\n  use engine='eager'")
    if step.sharded is not None:
        raise EngineError(
            "the engine 'arena' is for whole parameters, and fully_shard has sharded parts of the model\n  use "
            "engine='eager'"
        )


class _Forms:
    """The operations of a step that can write into given memory, and the layout of their results."""

    def __init__(self, step: LinkedStep) -> None:
        self._graph, self._operators = step.linked.graph, step.operators
        self._form: dict[str, PlacedForm | None] = {}
        self._strides: dict[Any, list[tuple[int, ...]] | None] = {}

    def of(self, name: str) -> PlacedForm | None:
        if name not in self._form:
            self._form[name] = form_of(name)
        return self._form[name]

    def has(self, op: Op) -> bool:
        return self.of(op.op) is not None and self.strides(op) is not None

    def strides(self, op: Op) -> list[tuple[int, ...]] | None:
        key = signature(self._graph, op)
        if key not in self._strides:
            self._strides[key] = strides_of(self._graph, op, self._operators[op.op])
        return self._strides[key]

    def placed(self, op: Op, addresses: tuple[int, ...]) -> Placed:
        form, strides = self.of(op.op), self.strides(op)
        assert form is not None
        assert strides is not None
        types = [self._graph.values[value].type for value in op.writes if value is not None]
        return Placed(
            form,
            tuple(
                ResultPlace(address, TORCH_DTYPES[type_.dtype], type_.shape, lie)
                for address, type_, lie in zip(addresses, types, strides, strict=True)
            ),
        )


def _room(step: LinkedStep, device: torch.device, plan: Layout, forms: _Forms, blocks: Blocks) -> Room:
    placed = {at: forms.placed(operation_at(step.linked, at), each) for at, each in plan.addresses.items()}

    def opened(empty: list[Any], views: Mapping[ResultPlace, int], spare: int) -> Callable[[], list[Any]]:
        def open_() -> list[Any]:
            lease = blocks.take(plan.height, device)
            slots = lease.block.slots(empty, views)
            slots[spare] = lease
            return slots

        return open_

    return Room(placed, opened, plan.height + plan.rest)


def _log_layout(plan: Layout) -> None:
    if not plan.computed:
        return
    most = sorted(plan.left.items(), key=lambda operator_bytes: -operator_bytes[1])[:_NAMED]
    elsewhere = ", ".join(f"{name} {nbytes / plan.computed:.1%}" for name, nbytes in most)
    _log.info(
        "an arena of %s takes %.1f %% of the bytes that the step's operators make; beside it the step holds %s at "
        "most%s",
        size(plan.height),
        100 * plan.placed / plan.computed,
        size(plan.rest),
        f" ({elsewhere})" if elsewhere else "",
    )


ARENA = Engine(
    "arena",
    "calls one operator after the other, with results at planned addresses in one block",
    _start,
    shared=True,
    keeps=True,
)
