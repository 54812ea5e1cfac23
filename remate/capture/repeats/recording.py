"""What forward asks of torch, call by call, and within which calls of modules."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

from ..places import SourcePlace, calling_place
from .errors import UnlikeError
from .specs import OPAQUE, Tensor, is_opaque, layout, spec, tensors

AUTOCAST = ("cpu", "cuda")


class Modes(NamedTuple):
    """What PyTorch was told to do. casts: of each of AUTOCAST, the type. cache: whether casts are kept. hooks: for
    tensors that backward reads."""

    grads: bool
    casts: tuple[torch.dtype | None, ...]
    cache: bool
    hooks: Any


class Event(NamedTuple):
    """A call of a function of tensors. made: with the layouts of tensors after the call. opaque: there is something
    among these that cannot be compared."""

    function: Any
    args: Any
    made: Any
    module: str
    place: SourcePlace
    modes: Modes
    opaque: bool


class BlockCall(msgspec.Struct):
    """One call of a module's forward. events: `start` up to `end`. own: parameters and buffers of the module, by the
    number of the tensor: name, layout, whether it is a parameter. given, made: specs of arguments and result. tensors:
    the arguments themselves. fault: why it cannot be traced individually. caller: the line that called, if it is the
    user's. graph: what autograd noted, by name. above: the call that it is part of. versions: of the tensors that it
    was given and made, and how often they were written to then.
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
    made: Any = None
    fault: str = ""
    graph: tuple[str, ...] = ()
    versions: list[tuple[torch.Tensor, int]] = []


class CallRecorder:
    """Of one run of forward. Tensors have numbers, in the order in which they were met; they are kept, so that ids stay
    theirs. failed: something was asked that cannot be recorded."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.calls: list[BlockCall] = []
        self.final: list[int] = []  # tensors that forward returned
        self.written = 0  # attributes that forward set so far
        self.results: list[Any] = []  # by event
        self.failed = False
        self._open: list[BlockCall] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[torch.Tensor] = []

    def met(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give these tensors the next numbers, in their order."""
        for tensor in tensors:
            self._number(tensor)

    def called(self, function: Any, args: Any, kwargs: Any, made: Any, module: str, place: SourcePlace) -> None:
        """Call where no mode sees what is asked of tensors here."""
        if self.failed:
            return
        try:
            event = function, self.given(args, kwargs), spec(made, self._tensor), module, place, _modes()
            self.events.append(Event(*event, is_opaque((event[1], event[2], event[5].hooks))))
            self.results.append(made)
        except Exception:  # tensors that have no strides, and whatever else there may be
            self.failed = True

    @contextmanager
    def trying(self) -> Iterator[None]:
        """What is tried within may fail: then nothing more is recorded."""
        try:
            yield
        except Exception:
            self.failed = True

    def given(self, args: Any, kwargs: Any) -> Any:
        """Arguments of a function, as events have them."""
        return spec((args, kwargs), self._bare)

    def finished(self, tensors: Sequence[torch.Tensor]) -> None:
        self.final = [self._tensor(tensor).number for tensor in tensors]

    def wrote(self) -> None:
        """Forward sets an attribute."""
        self.written += 1

    def entered(self, module: nn.Module, path: str, args: Any, kwargs: Any) -> BlockCall:
        own = {}
        for named, is_parameter in ((module.named_parameters(), True), (module.named_buffers(), False)):
            for name, tensor in named:
                own[self._tensor(tensor).number] = (name, layout(tensor), is_parameter)
        place, is_users = calling_place(sys._getframe(2))
        given = spec((args, kwargs), self._tensor)
        caller = place if is_users else SourcePlace()
        above = self._open[-1] if self._open else None
        call = BlockCall(module, path, len(self.events), given, own, (args, kwargs), caller, above)
        call.versions = [(self._kept[number], self._kept[number]._version) for number in self._touched(call)]
        call.fault = _fault(module, self._inputs(call))
        self.calls.append(call)
        self._open.append(call)
        return call

    def left(self, call: BlockCall, made: Any, written: int) -> None:
        """written: `written` when it was entered."""
        self._open.remove(call)
        call.end, call.made = len(self.events), spec(made, self._tensor)
        if self.written != written:
            call.fault = "it sets attributes"
        if any(tensor._version != version for tensor, version in call.versions):
            call.fault = "it writes into a tensor that it was given"
        outputs = [self._kept[tensor.number] for tensor in tensors(call.made)]
        call.versions += [(tensor, tensor._version) for tensor in outputs]
        call.graph, fault = _graph(outputs, self._inputs(call), [self._kept[number] for number in call.own])
        call.fault = call.fault or fault or ("it returns an object" if is_opaque(call.made) else "")

    def settled(self) -> Iterator[BlockCall]:
        """The calls that may be traced on its own as far as is seen in each alone, once forward is over."""
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


class CallReplay:
    """The calls of a recorded run, once more: nothing is computed, every call returns what it returned."""

    def __init__(self, recorder: CallRecorder) -> None:
        self._recorder = recorder
        self._at = 0

    def called(self, function: Any, args: Any, kwargs: Any, module: str, place: SourcePlace) -> Any:
        """What a call returned in the recorded run. Raises UnlikeError if there it was another call."""
        at, self._at = self._at, self._at + 1
        before = self._recorder.events[at] if at < len(self._recorder.events) else None
        if before is None or before[:2] != (function, self._recorder.given(args, kwargs)):
            raise UnlikeError("forward asks for something else")
        if before[3:6] != (module, place, _modes()) or isinstance(self._recorder.results[at], Exception):
            raise UnlikeError("forward asks elsewhere")
        return self._recorder.results[at]

    @property
    def whole(self) -> bool:
        """Whether all calls have been made."""
        return self._at == len(self._recorder.events)


@contextmanager
def replaced_forwards(modules: dict[str, nn.Module], wrap: Callable[[str, nn.Module, Any], Any]) -> Iterator[None]:
    """Meanwhile `wrap(path, module, forward)` stands for the forward of each module."""
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
    """For `replaced_forwards`: forward as it is, noted by `recorder`."""

    def wrap(path: str, module: nn.Module, forward: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            call, written = None, recorder.written
            with torch._C.DisableTorchFunction(), recorder.trying():
                call = recorder.entered(module, path, args, kwargs)
            outputs = forward(*args, **kwargs)
            with torch._C.DisableTorchFunction(), recorder.trying():
                if call is not None:
                    recorder.left(call, outputs, written)
            return outputs

        return run

    return wrap


def _fault(module: nn.Module, inputs: list[torch.Tensor]) -> str:
    if any(part._backward_hooks or part._backward_pre_hooks for part in module.modules()):
        return "it has hooks for backward"
    if len(set(map(id, inputs))) < len(inputs):
        return "it is given one tensor twice"
    if any(tensor.requires_grad and tensor.grad_fn is None for tensor in inputs):
        return "it is given a parameter"  # autocast keeps its casts for all of forward
    return ""


def _graph(
    outputs: list[torch.Tensor], given: list[torch.Tensor], own: list[torch.Tensor]
) -> tuple[tuple[str, ...], str]:
    """What autograd noted between tensors, by name, in the order of a search; and why it cannot be made again."""
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
    library: Any = torch._C
    hooks = library._autograd._top_saved_tensors_default_hooks(True)
    cache = any(casts) and torch.is_autocast_cache_enabled()
    return Modes(torch.is_grad_enabled(), casts, cache, OPAQUE if hooks else ())
