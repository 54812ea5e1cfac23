"""Calls of a model's parts in one step, for `remate.plan(model, args, at="h.*")`.

Forward runs once on the example inputs with data, because the code around the parts may depend on data. Nothing is
saved for backward; parameters, buffers, attributes, objects and generators are restored. For a named GPU, forward runs
on tensors without memory, so the code around the parts may not depend on data.
"""

from __future__ import annotations

import contextlib
import json
import random
import warnings
from collections.abc import Generator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import torch
from torch import nn

from remate_runtime.bind import modules_by_path
from remate_runtime.format import did_you_mean, unfold_paths
from remate_runtime.staleness import collected_within, qualified, tensors_of

from ..errors import CaptureError
from . import surroundings, trees
from .fake_call import NO_VALUES, without_memory
from .generators import undisturbed
from .kinds import kind_of
from .recorded import CallSettings, RecordedCall, recording, state_of
from .static_parts import static_parts
from .undone_writes import changes_undone

_SHOWN = 5  # paths in one message
_RUNS = 4  # of forward, if it draws random numbers: it may leave out parts at random


class PartCalls(msgspec.Struct, frozen=True):
    """Equal calls of equal modules.

    Attributes:
        paths: Paths of the modules, in the order of their first calls.
        states: State of each module at its call.
        calls: Number of calls of each module in the step.
        example: Arguments of the first call.
    """

    paths: tuple[str, ...]
    states: tuple[CallSettings, ...]
    calls: int
    example: RecordedCall

    def call(self, model: nn.Module, path: str) -> RecordedCall:
        """Return the call of one module. model: the whole model."""
        state = self.states[self.paths.index(path)]
        return RecordedCall.of(model.get_submodule(path), self.example.args, self.example.kwargs, state)


def part_calls(call: RecordedCall, at: str | Sequence[str]) -> list[PartCalls]:
    """Run the forward of a call, and collect the calls of the modules that `at` names.

    If forward draws random numbers and calls only some of them, it runs again.

    Args:
        call: The call of the whole model.
        at: Paths of modules. `*`, `?` and `[0-5]` match within one name ("transformer.h.*").

    Raises:
        CaptureError: A path names no module, a list of modules, or a module in another part; a module is not called
            with gradients; or forward fails.
    """
    with call.in_effect(), without_memory(call):
        parts = matched(call.model, [at] if isinstance(at, str) else list(at))
        takers = {path: _Taker(module, path) for path, module in parts.items()}
        with _recorded(takers), _left_as_it_was(call.model), changes_undone(call), _saving_nothing():
            try:
                _run_until_called(call, takers)
            except CaptureError as error:
                parts = _others(takers, error.module)
                raise CaptureError(error.message, error.module, error.source, error.hint, parts) from error
            except NO_VALUES:
                raise CaptureError(
                    "forward reads values of tensors around its parts, and without the GPU they have none",
                    hint="plan the parts on a machine with a GPU",
                ) from None
            except Exception as error:
                raise CaptureError(
                    f"forward fails on the example inputs: {type(error).__name__}: {error}",
                    hint="planning runs it once, to record the calls of its parts",
                ) from error
    _refuse_uncalled(takers)
    return _alike(takers)


def _run_until_called(call: RecordedCall, takers: dict[str, _Taker]) -> None:
    for _ in range(_RUNS):
        before = _generators()
        call.model(*call.args, **call.kwargs)
        for taker in takers.values():
            taker.complete = bool(taker.calls)
        if all(taker.complete or taker.others or taker.empty for taker in takers.values()) or _generators() == before:
            return


def _generators() -> object:
    """Return the states of random generators. Without memory, torch's has no values."""
    state: Any = torch.get_rng_state()
    drawn: list[int] = []
    with contextlib.suppress(*NO_VALUES):
        drawn = state.tolist()
    return drawn, random.getstate()


def matched(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """Return the modules that match the patterns, by path, in the model's order. Raises CaptureError."""
    known = {path: module for path, module in modules_by_path(model, each_once=True).items() if path}
    chosen: set[str] = set()
    for pattern in patterns:
        names = [path for text in unfold_paths([pattern]) for path in _matching(text, known)]
        if not names:
            hint = did_you_mean(pattern, sorted(known), "paths are those of model.named_modules(), with * for one name")
            raise CaptureError(f"no module of the model is called {pattern[:200]!r}", hint=hint)
        chosen.update(names)
    for path in sorted(chosen):
        if isinstance(known[path], nn.ModuleList | nn.ModuleDict):
            raise CaptureError("it is a list of modules, and is never called itself", path, hint=f"at={path + '.*'!r}")
        above = next((other for other in chosen if path.startswith(f"{other}.")), None)
        if above is not None:
            raise CaptureError(f"it is inside {above!r}, which is a part, too", path, hint="name one of them")
    return {path: module for path, module in known.items() if path in chosen}


def _matching(pattern: str, known: dict[str, nn.Module]) -> list[str]:
    wanted = pattern.split(".")
    return [
        path for path in known if len(names := path.split(".")) == len(wanted) and all(map(fnmatchcase, names, wanted))
    ]


class _Taker:
    """Collects the calls of a module in one run of forward.

    Attributes:
        calls: By form, their number, and the state and arguments of the first.
        others: Number of calls without gradients.
        empty: Number of calls whose tensors have no elements, as of an expert that gets no token.
        complete: Whether a run has ended that called the module.
    """

    def __init__(self, model: nn.Module, path: str) -> None:
        self.model, self.path = model, path
        self.calls: dict[str, tuple[int, CallSettings, RecordedCall]] = {}
        self.others, self.empty, self.complete = 0, 0, False
        self.known: dict[str, RecordedCall] = {}

    def take(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> bool:
        if self.complete:
            return False
        if keys := collected_within(self.model):
            raise CaptureError(
                f"the forward around it collects {', '.join(keys)} of modules within it, which a schedule does not "
                "call",
                self.path,
                hint="plan the model as a whole, or switch that off: "
                f"{', '.join(f'config.output_{key} = False' for key in keys)}",
            )
        given = list(tensors_of((args, kwargs)))
        if given and not any(tensor.numel() for tensor in given):
            self.empty += 1
            return False
        look = _look(self.model, args, kwargs)
        if look in self.calls:
            count, state, example = self.calls[look]
            self.calls[look] = count + 1, state, example
            return False
        example = self.known.get(look)
        if example is None:
            example = RecordedCall(self.model)
            if not example.take(args, kwargs):
                self.others += 1
                return False
            self.known[look] = example
        self.calls[look] = 1, state_of(self.model), example
        return False


def _look(model: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]) -> str:
    """Describe a call, to compare it with others before anything is traced."""

    def leaf(tensor: torch.Tensor, path: str) -> dict[str, Any]:
        return {"tensor": _tensor(tensor)}

    opaque: list[str] = []
    given = [
        trees.describe(a, "", leaf, lambda node, _: opaque.append(qualified(kind_of(node))), objects=True)
        for a in (list(args), kwargs)
    ]
    modules = modules_by_path(model, each_once=True).items()
    state = [(path, module.training, qualified(type(module))) for path, module in modules]
    held = [(name, _tensor(t)) for name, t in (*model.named_parameters(), *model.named_buffers())]
    casts = [str(torch.get_autocast_dtype(k)) for k in ("cpu", "cuda") if torch.is_autocast_enabled(k)]
    return json.dumps([given, opaque, state, held, casts])


def _tensor(tensor: torch.Tensor) -> list[Any]:
    return [list(tensor.shape), list(tensor.stride()), str(tensor.dtype), str(tensor.device), tensor.requires_grad]


@contextlib.contextmanager
def _recorded(takers: dict[str, _Taker]) -> Generator[None]:
    """Pass the calls of each module to its taker in the `with` block."""
    known: dict[str, RecordedCall] = {}
    kinds: list[tuple[nn.Module, type[nn.Module], type[nn.Module]]] = []
    try:
        for path, taker in takers.items():
            module, taker.known = taker.model, known
            if "forward" in vars(module):
                raise CaptureError("its forward was replaced, by a library that wraps models", path, hint="plan before")
            kind = type(module)
            recording_kind = recording(kind, taker, False)
            try:
                module.__class__ = recording_kind
            except TypeError:
                raise CaptureError(f"the calls of a {kind.__name__} cannot be recorded", path) from None
            kinds.append((module, kind, recording_kind))
        yield
    finally:
        for module, kind, recording_kind in kinds:
            if type(module) is recording_kind:
                module.__class__ = kind


@contextlib.contextmanager
def _left_as_it_was(model: nn.Module) -> Generator[None]:
    """Restore attributes and generators."""
    attributes = surroundings.Attributes(model)
    devices = [p.device for p in model.parameters() if p.device.type == "cuda"][:1]
    met: list[str] = []
    random_numbers: Any = torch.random  # torch declares its functions without types
    try:
        with (
            undisturbed(model, []),
            random_numbers.fork_rng(devices),
            surroundings.checkpoints_run_once(lambda frame: met.append(frame.f_code.co_name)),
        ):
            yield
    finally:
        attributes.restore()
    if met:
        warnings.warn(
            "forward uses torch.utils.checkpoint: where it does so around parts, switch it off when they train by "
            "schedules, which decide what runs again",
            UserWarning,
            stacklevel=6,
        )


@contextlib.contextmanager
def _saving_nothing() -> Generator[None]:
    """Enable gradients, but save nothing for backward."""

    def missing(_: None) -> torch.Tensor:
        raise CaptureError("forward takes gradients itself", hint="plan the model as a whole, or parts that do not")

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, missing):
        yield


def _others(takers: dict[str, _Taker], failed: str) -> list[str]:
    """Return the paths of other parts than the one that failed, and those of parts within it and within those of its
    class."""
    if failed not in takers:
        return []
    model = takers[failed].model
    alike = [path for path, taker in takers.items() if type(taker.model) is type(model)]
    within = static_parts(model, "")
    return [*(path for path in takers if path not in alike), *(f"{path}.{part}" for path in alike for part in within)]


def _refuse_uncalled(takers: dict[str, _Taker]) -> None:
    missing = [path for path, taker in takers.items() if not taker.calls]
    if missing:
        some = ", ".join(map(repr, missing[:_SHOWN])) + (
            f" and {len(missing) - _SHOWN} more" if missing[_SHOWN:] else ""
        )
        why = "without gradients" if any(takers[path].others for path in missing) else "not"
        if any(takers[path].empty for path in missing):
            why = "with tensors without elements"
        raise CaptureError(
            f"forward calls {some} {why}",
            hint="name parts that are called in a step that trains; switch layerdrop off while planning",
            parts=[path for path, taker in takers.items() if taker.calls],
        )


def _alike(takers: dict[str, _Taker]) -> list[PartCalls]:
    groups: dict[tuple[str, int], list[tuple[str, CallSettings, RecordedCall]]] = {}
    for path, taker in takers.items():
        for look, (count, state, example) in taker.calls.items():
            groups.setdefault((look, count), []).append((path, state, example))
    return [
        PartCalls(tuple(p for p, _, _ in members), tuple(s for _, s, _ in members), count, members[0][2])
        for (_, count), members in groups.items()
    ]
