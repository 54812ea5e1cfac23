"""Finds calls of modules that do the same: equal calls of torch, in equal order, with the corresponding tensors.

The attributes, layer numbers, globals, closures and the clock that forward reads do not matter, because each of these
modules has run, and the resulting calls are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from .candidates import LEAST, SHARE
from .recording import BlockCall, CallRecorder, Event, Modes
from .specs import GRAD, OPAQUE, Tensor, is_opaque, renamed, tensors

_LOOKS_FARTHER = (
    "as_strided",
    "as_strided_",
    "set_",
    "resize_",
    "resize_as_",
)  # functions that read more than the layout of a tensor


class CallForm(msgspec.Struct, frozen=True):
    """A comparable form of a call. key: equal for calls that do the same. inputs, outputs: numbers of the tensors that
    it receives, and of those that it creates and returns. result: spec of the result."""

    key: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    result: Any


class CallBlock(msgspec.Struct, frozen=True):
    """A call that is not traced. used: for each output, whether anything is computed from it. modes: at its start."""

    call: BlockCall
    form: CallForm
    used: tuple[bool, ...]
    modes: Modes


def form(call: BlockCall, events: Sequence[Event]) -> CallForm | None:
    """Return the form of a call, or None if it cannot be compared. events: those of the whole forward."""
    names: dict[int, Any] = {number: ("own", name) for number, (name, _, _) in call.own.items()}
    inputs = [tensor for tensor in tensors(call.given) if tensor.number not in names]
    names |= {tensor.number: ("in", at) for at, tensor in enumerate(inputs)}
    own = tuple((name, layout, kind) for name, layout, kind in call.own.values())
    created: dict[int, None] = {}

    def known(tensor: Tensor) -> Any:
        return names.get(tensor.number, OPAQUE), tensor.layout

    def numbered(tensor: Tensor) -> Any:
        if tensor.number not in names:
            names[tensor.number] = ("at", len(names))
            created[tensor.number] = None
        return known(tensor)

    steps: list[tuple[Any, ...]] = []
    for event in events[call.start : call.end]:
        inside = _below(call.path, event.module)
        args = renamed(event.args, known)
        steps.append((event.function, args, renamed(event.result, numbered), inside, event.place, event.modes))
        farther = getattr(event.function, "__name__", "") in _LOOKS_FARTHER
        if farther or inside is None or event.opaque or is_opaque(args):
            return None
    result = renamed(call.result, known)
    outputs = tuple(dict.fromkeys(t.number for t in tensors(call.result) if t.number in created))
    if is_opaque((result, call.given)) or {t.number for t in tensors(call.result)} & call.own.keys():
        return None
    key = (type(call.module), own, renamed(call.given, known), tuple(steps), result)
    return CallForm(key, tuple(t.number for t in inputs), outputs, call.result)


def blocks(recorder: CallRecorder, delivered: Sequence[int]) -> list[list[CallBlock]]:
    """Return equal calls, grouped; of nested calls the outer ones. The result is empty if most of forward would be
    traced anyway. delivered: numbers of tensors that get a gradient from outside."""
    uses = _Uses(recorder, delivered)
    usable = {id(call) for call in recorder.settled() if call.start < call.end and not uses.adds_gradients(call)}
    enough = SHARE * len(recorder.events)
    if sum(call.end - call.start for call in _outer(recorder.calls, usable)) < enough:
        return []
    chosen: list[list[CallBlock]] = []
    level = [call for call in recorder.calls if call.above is None]
    while level:
        kinds: dict[Any, list[CallBlock]] = {}
        for call in level:
            call_form = form(call, recorder.events) if id(call) in usable else None
            if call_form is not None and uses.closed(call, call_form):
                modes = recorder.events[call.start].modes
                used = tuple(uses.last.get(number, -1) >= call.end for number in call_form.outputs)
                kinds.setdefault((call_form.key, call.graph, used), []).append(CallBlock(call, call_form, used, modes))
        repeated = [kind for kind in kinds.values() if len(kind) >= LEAST and any(kind[0].used)]
        chosen += repeated
        taken = {id(block.call) for kind in repeated for block in kind}
        above = {id(call) for call in level} - taken
        level = [call for call in recorder.calls if call.above is not None and id(call.above) in above]
    saved = sum(block.call.end - block.call.start for kind in chosen for block in kind[1:])
    return chosen if saved >= enough else []


def _outer(calls: Sequence[BlockCall], usable: set[int]) -> list[BlockCall]:
    """The usable calls that are in no other usable call."""
    inner: set[int] = set()
    for call in calls:  # nested calls follow the outer one
        if call.above is not None and (id(call.above) in usable or id(call.above) in inner):
            inner.add(id(call))
    return [call for call in calls if id(call) in usable and id(call) not in inner]


class _Uses:
    """The first and last event that uses each tensor. Returned tensors are used at the end."""

    def __init__(self, recorder: CallRecorder, delivered: Sequence[int]) -> None:
        self._events = recorder.events
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self._differentiated: dict[int, int] = {}  # the last use that may contribute a gradient
        for at, event in enumerate(recorder.events):
            passes = any(tensor.layout[GRAD] for tensor in tensors(event.result))
            for tensor in tensors(event.args):
                self.first.setdefault(tensor.number, at)
                self.last[tensor.number] = at
                if passes:
                    self._differentiated[tensor.number] = at
        self.last |= dict.fromkeys(recorder.final, len(recorder.events))
        self._differentiated |= dict.fromkeys(delivered, len(recorder.events))

    def closed(self, call: BlockCall, form_of_call: CallForm) -> bool:
        """Whether only the results of a call are used elsewhere, and none of its own parameters and buffers."""
        within = {tensor.number for event in self._events[call.start : call.end] for tensor in tensors(event.result)}
        leaking = within.difference(call.own, form_of_call.inputs, form_of_call.outputs)
        own = all(self.first.get(n, call.start) >= call.start and self.last.get(n, -1) < call.end for n in call.own)
        return own and all(self.last.get(number, -1) < call.end for number in leaking)

    def adds_gradients(self, call: BlockCall) -> bool:
        """Whether a gradient of a call is added to an earlier gradient. Autograd adds them within the call's backward,
        which the node of an opaque block cannot do; see `pasting`."""
        given = [tensor.number for tensor in tensors(call.given) if tensor.layout[GRAD]]
        return any(self._differentiated.get(number, -1) >= call.end for number in given)


def _below(path: str, module: str) -> str | None:
    """The path of a module relative to `path`; None if it is not below."""
    if module == path:
        return ""
    return module.removeprefix(f"{path}.") if module.startswith(f"{path}.") else None
