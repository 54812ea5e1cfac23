"""Records forward's calls of torch, and the calls of modules around them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

from remate_runtime.staleness import held_by
from remate_runtime.torch_private.execution import DisableTorchFunction, saved_tensor_hooks

from ..places import SourcePlace, calling_place, frame_above
from .errors import UnlikeError
from .specs import OPAQUE, Tensor, is_opaque, layout, spec, tensors

AUTOCAST = ("cpu", "cuda")


class Modes(NamedTuple):
    """The modes of PyTorch. casts: the autocast dtype of each device in AUTOCAST. cache: whether casts are cached.
    hooks: on saved tensors."""

    grads: bool
    casts: tuple[torch.dtype | None, ...]
    cache: bool
    hooks: Any


class Event(NamedTuple):
    """A call of a function of tensors. result: with the layouts of tensors after the call. opaque: arguments or result
    cannot be compared."""

    function: Any
    args: Any
    result: Any
    module: str
    place: SourcePlace
    modes: Modes
    opaque: bool


class BlockCall(msgspec.Struct):
    """A call of a module's forward.

    Attributes:
        start, end: The range of its events.
        given, result: Specs of arguments and result.
        own: Parameters and buffers of the module by tensor number: name, layout, whether it is a parameter.
        tensors: The arguments.
        caller: The line that called it, if it is the user's.
        above: The call that contains it.
        fault: Why it cannot be traced individually.
        graph: Names of its autograd nodes.
        versions: Its arguments and results, with their version counters.
    """

    module: nn.Module
    path: str
    start: int
    given: Any
    own: dict[int, tuple[str, tuple[Any, ...], bool]]
    tensors: tuple[tuple[Any, ...], dict[str, Any]]
    caller: SourcePlace
    above: BlockCall | None
    end: int = 0
    result: Any = None
    fault: str = ""
    graph: tuple[str, ...] = ()
    versions: list[tuple[torch.Tensor, int]] = []


class CallRecorder:
    """Records one run of forward. Tensors are numbered in the order of their first use, and kept alive so that their
    ids stay unique. failed: a call could not be recorded."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.calls: list[BlockCall] = []
        self.final: list[int] = []  # numbers of the tensors that forward returned
        self.written = 0  # number of attributes that forward has set
        self.results: list[Any] = []  # by event
        self.failed = False
        self._open: list[BlockCall] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[torch.Tensor] = []

    def met(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give these tensors the next numbers, in their order."""
        for tensor in tensors:
            self._number(tensor)

    def called(self, function: Any, args: Any, kwargs: Any, result: Any, module: str, place: SourcePlace) -> None:
        """Record a call. The caller must have disabled the modes that see calls on tensors."""
        if self.failed:
            return
        try:
            event = function, self.given(args, kwargs), spec(result, self._tensor), module, place, _modes()
            self.events.append(Event(*event, is_opaque((event[1], event[2], event[5].hooks))))
            self.results.append(result)
        except Exception:  # tensors without strides, and other unsupported values
            self.failed = True

    def trying(self) -> _Trying:
        """Stop recording if the `with` block fails."""
        return _Trying(self)

    def given(self, args: Any, kwargs: Any) -> Any:
        """Return the spec of a function's arguments."""
        return spec((args, kwargs), self._bare)

    def finished(self, tensors: Sequence[torch.Tensor]) -> None:
        self.final = [self._tensor(tensor).number for tensor in tensors]

    def wrote(self) -> None:
        """Record that forward sets an attribute."""
        self.written += 1

    def entered(self, module: nn.Module, path: str, args: Any, kwargs: Any) -> BlockCall:
        own: dict[int, tuple[str, Any, bool]] = {}
        for named, is_parameter in ((module.named_parameters(), True), (module.named_buffers(), False)):
            for name, tensor in named:
                own[self._tensor(tensor).number] = (name, layout(tensor), is_parameter)
        place, is_users = calling_place(frame_above(2))
        given = spec((args, kwargs), self._tensor)
        caller = place if is_users else SourcePlace()
        above = self._open[-1] if self._open else None
        call = BlockCall(module, path, len(self.events), given, own, (args, kwargs), caller, above)
        call.versions = [(self._kept[number], self._kept[number]._version) for number in self._touched(call)]
        call.fault = _fault(module, self._inputs(call))
        self.calls.append(call)
        self._open.append(call)
        return call

    def left(self, call: BlockCall, result: Any, written: int) -> None:
        """End a call. written: the value of `written` at its start."""
        self._open.remove(call)
        call.end, call.result = len(self.events), spec(result, self._tensor)
        if self.written != written:
            call.fault = "it sets attributes"
        if any(tensor._version != version for tensor, version in call.versions):
            call.fault = "it writes into a tensor that it was given"
        outputs = [self._kept[tensor.number] for tensor in tensors(call.result)]
        call.versions += [(tensor, tensor._version) for tensor in outputs]
        call.graph, fault = _graph(outputs, self._inputs(call), [self._kept[number] for number in call.own])
        call.fault = call.fault or fault or ("it returns an object" if is_opaque(call.result) else "")

    def settled(self) -> Iterator[BlockCall]:
        """Return the calls without a fault, at the end of forward."""
        met: dict[int, int] = {}
        for call in self.calls:
            met[id(call.module)] = met.get(id(call.module), 0) + 1
        for call in self.calls:
            as_left = all(tensor._version == version for tensor, version in call.versions)
            if not call.fault and as_left and met[id(call.module)] == 1:
                yield call

    def tensors(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        return [self._kept[number] for number in numbers]

    def _inputs(self, call: BlockCall) -> list[torch.Tensor]:
        return [self._kept[tensor.number] for tensor in tensors(call.given)]

    def _touched(self, call: BlockCall) -> list[int]:
        return [*call.own, *(tensor.number for tensor in tensors(call.given))]

    def _bare(self, tensor: torch.Tensor) -> Tensor:
        return Tensor(self._number(tensor), ())

    def _tensor(self, tensor: torch.Tensor) -> Tensor:
        return Tensor(self._number(tensor), layout(tensor))

    def _number(self, tensor: torch.Tensor) -> int:
        number = self._numbers.get(id(tensor))
        if number is None:
            number = self._numbers[id(tensor)] = len(self._kept)
            self._kept.append(tensor)
        return number


class _Trying:
    def __init__(self, recorder: CallRecorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        failed = isinstance(error, Exception)
        self._recorder.failed |= failed
        return failed


class CallReplay:
    """Replays a recorded run: nothing is computed, and every call returns its recorded result."""

    def __init__(self, recorder: CallRecorder) -> None:
        self._recorder = recorder
        self._at = 0

    def called(self, function: Any, args: Any, kwargs: Any, module: str, place: SourcePlace) -> Any:
        """Return the recorded result of a call. Raises UnlikeError if the recorded run made another call."""
        at, self._at = self._at, self._at + 1
        before = self._recorder.events[at] if at < len(self._recorder.events) else None
        if before is None or before[:2] != (function, self._recorder.given(args, kwargs)):
            raise UnlikeError("forward makes another call")
        if before[3:6] != (module, place, _modes()) or isinstance(self._recorder.results[at], Exception):
            raise UnlikeError("forward makes the call elsewhere")
        return self._recorder.results[at]

    @property
    def whole(self) -> bool:
        """Whether all calls have been made."""
        return self._at == len(self._recorder.events)


@contextmanager
def replaced_forwards(modules: dict[str, nn.Module], wrap: Callable[[str, nn.Module, Any], Any]) -> Generator[None]:
    """Replace the forward of each module by `wrap(path, module, forward)` in the `with` block."""
    placed: list[nn.Module] = []
    try:
        for path, module in modules.items():
            forward = module.forward
            vars(module)["forward"] = functools.wraps(forward)(wrap(path, module, forward))
            placed.append(module)
        yield
    finally:
        for module in placed:
            vars(module).pop("forward", None)


def recording(recorder: CallRecorder) -> Callable[[str, nn.Module, Any], Any]:
    """For `replaced_forwards`: run forward, recorded by `recorder`."""

    def wrap(path: str, module: nn.Module, forward: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            written = recorder.written
            call: BlockCall | None = None
            with DisableTorchFunction(), recorder.trying():
                call = recorder.entered(module, path, args, kwargs)
            outputs = forward(*args, **kwargs)
            with DisableTorchFunction(), recorder.trying():
                if call is not None:
                    recorder.left(call, outputs, written)
            return outputs

        return run

    return wrap


def hooks_backward(module: nn.Module) -> bool:
    """Whether the module has hooks for backward."""
    attributes = held_by(module)
    return bool(attributes["_backward_hooks"] or attributes["_backward_pre_hooks"])


def _fault(module: nn.Module, inputs: list[torch.Tensor]) -> str:
    if any(hooks_backward(part) for part in module.modules()):
        return "it has hooks for backward"
    if len(set(map(id, inputs))) < len(inputs):
        return "it receives a tensor twice"
    if any(tensor.requires_grad and tensor.grad_fn is None for tensor in inputs):
        return "it receives a parameter"  # autocast keeps its casts for all of forward
    return ""


def _graph(
    outputs: list[torch.Tensor], given: list[torch.Tensor], own: list[torch.Tensor]
) -> tuple[tuple[str, ...], str]:
    """Return the names of the autograd nodes between tensors, in search order, and why they cannot be traced again."""
    ends = [tensor.grad_fn for tensor in given if tensor.grad_fn is not None]
    seen: dict[Any, None] = dict.fromkeys(ends)
    names: list[str] = []
    leaves = set(map(id, own))
    todo = [tensor.grad_fn for tensor in reversed(outputs) if tensor.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen[node] = None
        names.append(node.name())
        if isinstance(node, BackwardCFunction):
            return (), f"autograd runs {node.name()}, which is written in Python"
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in leaves:
            return (), "gradients leave it for a tensor that it was not given"
        todo += [following for following, _ in reversed(node.next_functions) if following is not None]
    return tuple(names), ""


def _modes() -> Modes:
    casts = tuple(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in AUTOCAST)
    hooks = saved_tensor_hooks(True)
    cache = any(casts) and torch.is_autocast_cache_enabled()
    return Modes(torch.is_grad_enabled(), casts, cache, OPAQUE if hooks else ())
