"""Calls of a model's parts, as the model makes them in one step: what `remate.plan(model, args, at="h.*")` plans.

Forward is run once on the example inputs, for real, since what lies around the parts may depend on data. What autograd
would save is dropped at once, and buffers, attributes and generators are put back. For a GPU that is not here it is run
on tensors without memory, so nothing around the parts may depend on data.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import torch
from torch import nn

from remate_runtime.format import did_you_mean, unfold_paths
from remate_runtime.staleness import collected_within, qualified

from ..errors import CaptureError
from . import surroundings, trees
from .fake_call import NO_VALUES, without_memory
from .generators import undisturbed
from .recorded import CallSettings, RecordedCall, recording, state_of

_SHOWN = 5  # paths in one message


class PartCalls(msgspec.Struct, frozen=True):
    """Calls that look alike, from modules that look alike. paths: of the modules, in the order of their first calls.
    states: of each at its call. calls: of each in the step. example: the arguments of the first."""

    paths: tuple[str, ...]
    states: tuple[CallSettings, ...]
    calls: int
    example: RecordedCall

    def call(self, model: nn.Module, path: str) -> RecordedCall:
        """The call of one of the modules. model: the whole."""
        state = self.states[self.paths.index(path)]
        return RecordedCall.of(model.get_submodule(path), self.example.args, self.example.kwargs, state)


def part_calls(call: RecordedCall, at: str | Sequence[str]) -> list[PartCalls]:
    """Run the forward of a call, and gather the calls of the modules that `at` names.

    at: paths, `*`, `?` and `[0-5]` standing for parts of one name ("transformer.h.*"). Raises CaptureError where a path
    leads to no module, to a list of them, or into another part; where a module is not called with gradients; where
    forward fails.
    """
    with call.in_effect(), without_memory(call):
        parts = matched(call.model, [at] if isinstance(at, str) else list(at))
        takers = {path: _Taker(module, path) for path, module in parts.items()}
        with _recorded(takers), _left_as_it_was(call.model), _saving_nothing():
            try:
                call.model(*call.args, **call.kwargs)
            except CaptureError:
                raise
            except NO_VALUES:
                raise CaptureError(
                    "forward reads values of tensors around its parts, and for a GPU that is not here there are none",
                    hint="plan the parts on a machine with a GPU",
                ) from None
            except Exception as error:
                raise CaptureError(
                    f"forward fails on the example inputs: {type(error).__name__}: {error}",
                    hint="it is run once for real, to see how it calls its parts",
                ) from error
    _refuse_uncalled(takers)
    return _alike(takers)


def matched(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """The modules that patterns name, by path, in the model's order. Raises CaptureError."""
    known = {path: module for path, module in model.named_modules() if path}
    chosen: set[str] = set()
    for pattern in patterns:
        names = [one for text in unfold_paths([pattern]) for one in _matching(text, known)]
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
    """What a module is called with. calls: by how they look, how many, the state of the first, and its arguments."""

    def __init__(self, model: nn.Module, path: str) -> None:
        self.model, self.path = model, path
        self.calls: dict[str, tuple[int, CallSettings, RecordedCall]] = {}
        self.others = 0  # without gradients
        self.known: dict[str, RecordedCall] = {}

    def take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if keys := collected_within(self.model):
            raise CaptureError(
                f"the forward around it collects {', '.join(keys)} of modules within it, which a schedule does not "
                "call",
                self.path,
                hint="plan the model as a whole, or switch that off: "
                f"{', '.join(f'config.output_{key} = False' for key in keys)}",
            )
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


def _look(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """All by which calls are distinguished before anything is traced."""

    def leaf(tensor: torch.Tensor, path: str) -> dict[str, Any]:
        return {"tensor": _tensor(tensor)}

    opaque: list[str] = []
    given = [
        trees.describe(a, "", leaf, lambda node, _: opaque.append(qualified(type(node)))) for a in (list(args), kwargs)
    ]
    state = [(path, module.training, qualified(type(module))) for path, module in model.named_modules()]
    held = [(name, _tensor(t)) for name, t in (*model.named_parameters(), *model.named_buffers())]
    casts = [str(torch.get_autocast_dtype(k)) for k in ("cpu", "cuda") if torch.is_autocast_enabled(k)]
    return json.dumps([given, opaque, state, held, casts])


def _tensor(tensor: torch.Tensor) -> list[Any]:
    return [list(tensor.shape), list(tensor.stride()), str(tensor.dtype), str(tensor.device), tensor.requires_grad]


@contextlib.contextmanager
def _recorded(takers: dict[str, _Taker]) -> Iterator[None]:
    """Meanwhile each module hands what it is called with to its taker."""
    known: dict[str, RecordedCall] = {}
    kinds: list[tuple[nn.Module, type[nn.Module], type[nn.Module]]] = []
    try:
        for path, taker in takers.items():
            module, taker.known = taker.model, known
            if "forward" in vars(module):
                raise CaptureError("its forward was replaced, by a library that wraps models", path, hint="plan before")
            kind = type(module)
            made = recording(kind, taker, False)
            try:
                module.__class__ = made
            except TypeError:
                raise CaptureError(f"the calls of a {kind.__name__} cannot be recorded", path) from None
            kinds.append((module, kind, made))
        yield
    finally:
        for module, kind, made in kinds:
            if type(module) is made:
                module.__class__ = kind


@contextlib.contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Buffers, attributes and generators are put back."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    attributes = surroundings.Attributes(model)
    devices = [p.device for p in model.parameters() if p.device.type == "cuda"][:1]
    met: list[str] = []
    try:
        with (
            undisturbed(model, []),
            torch.random.fork_rng(devices),
            surroundings.checkpoints_run_once(lambda frame: met.append(frame.f_code.co_name)),
        ):
            yield
    finally:
        attributes.restore()
        with torch.no_grad():
            for buffer, contents in buffers:
                buffer.copy_(contents)
    if met:
        warnings.warn(
            "forward uses torch.utils.checkpoint: where it does so around parts, switch it off when they train by "
            "schedules, which decide what runs again",
            UserWarning,
            stacklevel=6,
        )


@contextlib.contextmanager
def _saving_nothing() -> Iterator[None]:
    """Gradients are on, and nothing is kept for backward."""

    def missing(_: None) -> torch.Tensor:
        raise CaptureError("forward takes gradients itself", hint="plan the model as a whole, or parts that do not")

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, missing):
        yield


def _refuse_uncalled(takers: dict[str, _Taker]) -> None:
    missing = [path for path, taker in takers.items() if not taker.calls]
    if missing:
        some = ", ".join(map(repr, missing[:_SHOWN])) + (
            f" and {len(missing) - _SHOWN} more" if missing[_SHOWN:] else ""
        )
        why = "without gradients" if any(takers[path].others for path in missing) else "not"
        raise CaptureError(
            f"forward calls {some} {why}",
            hint="name parts that are called in a step that trains; switch layerdrop off while planning",
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
