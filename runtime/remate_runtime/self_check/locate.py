"""Locates a difference: the first operation of the schedule whose result the model never computes, and the reverse.

This needs no mapping between the two, because equal steps compute equal numbers. Random numbers are left out: the
schedule draws masks of dropout as booleans, eager PyTorch as floating-point numbers. Results that depend on them show a
difference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from inspect import currentframe
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from ..bind.modules import modules_by_path
from ..format.json_values import is_array
from ..staleness.compare import coarsest, largest_finite
from ..torch_private.execution import TorchDispatchMode
from .checksum import Checksum, Checksums, summary
from .generators import Generators
from .live_forward import discarding, uncached
from .program import Program
from .snapshot import Snapshot

_SKIPPED = ("torch", "remate_runtime", "contextlib", "functools")


class _Result(NamedTuple):
    """A result of an operation. place: where it was computed, as text."""

    checksum: Checksum
    place: str


class Located(NamedTuple):
    """The comparison of a schedule's operations with those of its model.

    Attributes:
        places: The first operation on either side that the other does not have, as text.
        same: Whether the model computes every result of the schedule bitwise.
        largest: Largest absolute value of any result of the schedule.
        dtype: The least precise of their floating-point types.
    """

    places: list[str]
    same: bool
    largest: float
    dtype: torch.dtype


NOT_LOCATED = Located([], False, 0.0, torch.float32)


def located(program: Program, checksums: Checksums) -> Located:
    """Compare the operations of a schedule, executed one by one as eager PyTorch does, with those of its model.

    Args:
        program: The call. Everything is restored.
        checksums: Computes checksums.

    Returns:
        The comparison; `NOT_LOCATED` if one of the two cannot be followed.
    """
    try:
        live = _results_of_model(program, checksums)
        scheduled, largest, dtype = _results_of_schedule(program, checksums)
    except Exception:
        return NOT_LOCATED
    places: list[str] = []
    for ours, others, words in (
        (scheduled, live, "the first result of the schedule that the model does not compute"),
        (live, scheduled, "the first result of the model that the schedule does not compute"),
    ):
        known = {result.checksum for result in others}
        first = next((result for result in ours if result.checksum not in known), None)
        if first is not None:
            places.append(f"{words}: {first.place}")
    return Located(places, {r.checksum for r in scheduled} <= {r.checksum for r in live}, largest, dtype)


@contextlib.contextmanager
def _left_as_it_was(program: Program, checksums: Checksums) -> Generator[None]:
    start = Generators.now()
    snapshot = Snapshot(program.model, (program.args, program.kwargs), program.updated().values())
    try:
        yield
    finally:
        snapshot.restore(checksums)
        start.restore()


def _results_of_schedule(program: Program, checksums: Checksums) -> tuple[list[_Result], float, torch.dtype]:
    """Return the schedule's results, their largest absolute value, and the least precise of their types."""
    results: list[_Result] = []
    largest, dtype = 0.0, torch.float32
    with _left_as_it_was(program, checksums):
        for op, tensors in program.observe():
            source = f", planned from {op.source}" if op.source else ""
            for tensor in tensors:
                largest = max(largest, largest_finite(tensor))
                dtype = coarsest([tensor, torch.empty(0, dtype=dtype)])
                if not op.random:
                    place = f"{op.op} of operation {op.id!r}, {summary(tensor)}{source}"
                    results.append(_Result(checksums.of(tensor), place))
    return results, largest, dtype


def _results_of_model(program: Program, checksums: Checksums) -> list[_Result]:
    modules = _Modules(program.model)
    mode = _Noting(checksums, modules)
    with _left_as_it_was(program, checksums), modules.followed(), uncached(), discarding(_Ignored()), mode:
        program.model.forward(*program.args, **program.kwargs)
    return mode.results


class _Ignored:
    def look(self, value: object) -> None:
        """Do nothing: the first run has recorded the code."""


class _Modules:
    """Tracks the module whose forward is running."""

    def __init__(self, model: nn.Module) -> None:
        self._paths = {id(vars(module)): path for path, module in modules_by_path(model, each_once=True).items()}
        self._running: list[str] = []

    @contextlib.contextmanager
    def followed(self) -> Generator[None]:
        before = nn.modules.module.register_module_forward_pre_hook(self._enter)
        after = nn.modules.module.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: nn.Module, args: object) -> None:
        self._running.append(self._paths.get(id(vars(module)), ""))

    def _leave(self, module: nn.Module, args: object, outputs: object) -> None:
        if self._running:
            self._running.pop()

    def now(self) -> str:
        path = self._running[-1] if self._running else ""
        return f"module {path!r}" if path else "the model itself"


class _Noting(TorchDispatchMode):
    """Records the results of each operator, except random numbers and what is written over them in place."""

    def __init__(self, checksums: Checksums, modules: _Modules) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] (torch declares no types)
        self._checksums, self._modules = checksums, modules
        self._drawn: dict[int, torch.Tensor] = {}
        self.results: list[_Result] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = function(*args, **(kwargs or {}))
        tensors = [t for t in (returned if is_array(returned) else (returned,)) if isinstance(t, torch.Tensor)]
        if torch.Tag.nondeterministic_seeded in function.tags:
            self._drawn |= {id(tensor): tensor for tensor in tensors}
        elif not function.is_view:
            for tensor in tensors:
                if self._drawn.get(id(tensor)) is not tensor:
                    name = str(function._schema.name).replace("::", ".")
                    place = f"{name} in {self._modules.now()} ({_line()}), {summary(tensor)}"
                    self.results.append(_Result(self._checksums.of(tensor), place))
        return returned


def _line() -> str:
    """Return the innermost line of code that is neither torch's nor ours."""
    frame = currentframe()
    while frame is not None and _is_skipped(frame):
        frame = frame.f_back
    if frame is None:
        return "?"
    file = frame.f_code.co_filename.rpartition("/")[2]
    return f"{file}:{frame.f_lineno} {frame.f_code.co_name}"


def _is_skipped(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _SKIPPED
