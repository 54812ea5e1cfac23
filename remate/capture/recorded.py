"""`remate.record`: records the first training call of a real loop."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import torch
from msgspec.structs import replace
from torch import nn

from remate_runtime.applied import original_of
from remate_runtime.bind import modules_by_path
from remate_runtime.format import Digest
from remate_runtime.staleness import is_config

from ..errors import CaptureError
from . import trees
from .kinds import kind_of

_PLAIN = (bool, int, float, str, type(None))
_ABSENT: Any = object()


class CallSettings(msgspec.Struct, frozen=True):
    """The state on which a call depends, beside its arguments.

    Attributes:
        training: Training mode of each module, by path.
        grad: `requires_grad` of each parameter, by path.
        attributes: (path, name, value) of plain attributes of modules and their configs.
        autocast: Dtype of autocast.
        unwrapped: Whether forward was the forward of the model's class.
    """

    training: Mapping[str, bool] = {}
    grad: Mapping[str, bool] = {}
    attributes: tuple[tuple[str, str, Any], ...] = ()
    autocast: torch.dtype | None = None
    unwrapped: bool = False

    @contextlib.contextmanager
    def in_effect(self, model: nn.Module, cast: bool = True) -> Generator[None]:
        """Put `model` into this state in the `with` block. cast: enable the recorded autocast too."""
        before = state_of(model, ())
        changed = [(obj, name, obj.__dict__.get(name, _ABSENT), value) for obj, name, value in self._settings(model)]
        device = next((p.device.type for p in model.parameters()), "cpu")
        ambient = torch.autocast(device, self.autocast) if cast and self.autocast else contextlib.nullcontext()
        wrapped = vars(model).pop("forward", _ABSENT) if self.unwrapped else _ABSENT
        try:
            _switch(model, self.training, self.grad)
            for obj, name, _, value in changed:
                setattr(obj, name, value)
            with ambient:
                yield
        finally:
            if wrapped is not _ABSENT:
                vars(model)["forward"] = wrapped
            _switch(model, before.training, before.grad)
            for obj, name, value, _ in changed:
                if value is _ABSENT:
                    delattr(obj, name)
                else:
                    setattr(obj, name, value)

    def _settings(self, model: nn.Module) -> list[tuple[Any, str, Any]]:
        by_path = dict(_objects(model))
        present = [(by_path[path], name, value) for path, name, value in self.attributes if path in by_path]
        return [(obj, name, v) for obj, name, v in present if not _same(obj.__dict__.get(name, _ABSENT), v)]


def state_of(model: nn.Module, autocast: Sequence[str] = ("cuda", "cpu")) -> CallSettings:
    """Return the present state of `model`. autocast: device types; that of the model counts."""
    device = next((p.device.type for p in model.parameters()), "cpu")
    casts = device in autocast and torch.is_autocast_enabled(device)
    return CallSettings(
        training={path: module.training for path, module in modules_by_path(model, each_once=True).items()},
        grad={name: p.requires_grad for name, p in model.named_parameters()},
        attributes=tuple(
            (path, name, value)
            for path, obj in _objects(model)
            for name, value in obj.__dict__.items()
            if kind_of(value) in _PLAIN and name != "training"
        ),
        autocast=torch.get_autocast_dtype(device) if casts else None,
        unwrapped=True,
    )


def _objects(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Modules and the configs in their attributes, by path, each once."""
    seen: set[int] = set()
    for path, module in modules_by_path(model, each_once=True).items():
        yield path, module
        for name, value in vars(module).items():
            if is_config(value) and hasattr(value, "__dict__") and id(value) not in seen:
                seen.add(id(value))
                yield f"{path}.{name}".lstrip("."), value


def _same(left: object, right: object) -> bool:
    return type(left) is type(right) and (left == right or left != left)


def _switch(model: nn.Module, training: Mapping[str, bool], grad: Mapping[str, bool]) -> None:
    for path, module in modules_by_path(model, each_once=True).items():
        module.training = training.get(path, module.training)
    for name, parameter in model.named_parameters():
        wanted = grad.get(name, parameter.requires_grad)
        if wanted != parameter.requires_grad:  # uninitialized parameters cannot be compared
            parameter.requires_grad_(wanted)


class Taker(Protocol):
    """Receives the calls of `model`."""

    @property
    def model(self) -> nn.Module: ...

    def take(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> bool:
        """Receive a call. Returns whether it is the expected one."""
        ...


class RecordedCall:
    """A training call that `remate.record` recorded: `model`, `args`, `kwargs` and `state`.

    `remate.plan` and `remate.frontier` accept it instead of a model, and `build()` of `FILE.py:build` may return it.
    Tensors are copies. Before the first training call, `args`, `kwargs` and `state` raise CaptureError.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.open = False  # the loop still runs
        self._found: tuple[tuple[Any, ...], dict[str, Any], CallSettings] | None = None
        self._others = 0

    @classmethod
    def of(
        cls, model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object], state: CallSettings | None = None
    ) -> RecordedCall:
        """Make a call from its parts."""
        call = cls(model)
        call._found = (tuple(args), dict(kwargs), state or CallSettings())
        return call

    def in_effect(self, cast: bool = True) -> contextlib.AbstractContextManager[None]:
        """Put the model into the recorded state in the `with` block. cast: enable the recorded autocast too."""
        return self.state.in_effect(self.model, cast)

    @property
    def is_taken(self) -> bool:
        """Whether a training call was recorded."""
        return self._found is not None

    @property
    def args(self) -> tuple[Any, ...]:
        return self._taken[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        return self._taken[1]

    @property
    def state(self) -> CallSettings:
        return self._taken[2]

    def noted(self, digest: Digest | None) -> Digest | None:
        """Adapt the digest of this call's step: attributes that the loop sets are compared at the first call, not at
        `apply`."""
        return digest if digest is None or not self.state.attributes else replace(digest, at_call=True)

    @property
    def _taken(self) -> tuple[tuple[Any, ...], dict[str, Any], CallSettings]:
        if self._found is None:
            seen = f"{self._others} call(s), all without gradients" if self._others else "no call of it"
            hint = "record the module that the loop calls, while it trains: with remate.record(model) as call: ..."
            if "forward" in vars(self.model):
                seen += f", and its forward was replaced meanwhile, by {_replaced(self.model)!r}"
                hint = _PART
            raise CaptureError(
                f"no training call of the {type(self.model).__name__} was recorded: there was {seen}", hint=hint
            )
        return self._found

    def take(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> bool:
        """Record a call if it is the first with gradients. Returns whether it is."""
        if self._found is not None:
            return False
        wanted = any(p.requires_grad for p in self.model.parameters()) or any(
            t.requires_grad for t in trees.tensors((args, kwargs))
        )
        if not torch.is_grad_enabled() or not wanted:
            self._others += 1
            return False
        given = trees.tensors((args, kwargs))
        copies = {id(t): _copied(t).requires_grad_(t.requires_grad) for t in given}
        args, kwargs = trees.substitute((args, kwargs), [copies[id(t)] for t in given])
        self._found = (args, kwargs, state_of(self.model))
        return True


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor with its strides, also those of an expanded tensor."""
    plain = tensor.detach().clone()
    if plain.stride() == tensor.stride() or not tensor.numel() or tensor.layout is not torch.strided:
        return plain
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    held = tensor.detach().as_strided((span,), (1,)).clone()
    return held.as_strided(tensor.shape, tensor.stride(), 0)


def called(model: object, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None) -> RecordedCall:
    """Return the call to plan: a recorded call, or a model with its arguments. An applied model is replaced by its
    original. Raises CaptureError for arguments beside a recorded call, and for objects that are not modules."""
    model = original_of(model)
    if not isinstance(model, RecordedCall):
        if not isinstance(model, nn.Module):
            raise CaptureError(
                f"the model is {type(model).__name__}, not a torch.nn.Module", hint="wrap it in a Module"
            )
        return RecordedCall.of(model, args, kwargs or {})
    if args or kwargs:
        raise CaptureError("a recorded call has its arguments", hint="remate.plan(call, budget=...)")
    if model.open:
        raise CaptureError("the loop is still recorded", hint="plan after the `with` block")
    return model


_PART = (
    "a trainer that puts a forward of its own on the model (TRL's do) calls a part of it: record that, "
    "remate.record(model.base_model), and put the planned part in its place"
)


def _replaced(model: nn.Module) -> str:
    return getattr(vars(model)["forward"], "__qualname__", "something else")


class LoopLeft(BaseException):
    """Ends a loop. It is not an Exception, so that loops do not handle it as a failed step."""


@contextlib.contextmanager
def record(model: nn.Module, *, stop: bool = False) -> Generator[RecordedCall]:
    """Record the first training call of a model, as a loop makes it.

    The recorded call has the arguments, autocast, modes, frozen parameters and plain attributes at the beginning of
    forward. The loop runs on unchanged. Enter the `with` block before a library wraps the model (accelerate's
    `prepare`, a Trainer's `train`), so that what the library does around forward is recorded, too.

    Args:
        model: The model that the loop calls.
        stop: Whether to leave the loop at that call, before forward. Execution goes on after the `with` block.

    Yields:
        The call, for `remate.plan(call)`. It is complete when the `with` block has ended.

    Raises:
        CaptureError: The model is not a module of its own class (TorchScript, an applied model), or its forward was
            replaced.

    Examples:
        >>> import remate, torch
        >>> from torch import nn
        >>> model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
        >>> with remate.record(model) as call:
        ...     model(torch.randn(1024, 64)).sum().backward()
        >>> schedule = remate.plan(call, budget="80%", cost="cpu")
    """
    if original_of(model) is not model:
        raise CaptureError("the model has a schedule already", hint="record the model that it was applied to")
    if "forward" in vars(model):
        raise CaptureError(
            f"the forward of the model was replaced by {_replaced(model)!r}",
            hint=f"record before a library wraps the model; {_PART}",
        )
    call, kind = RecordedCall(model), type(model)
    recorder = recording(kind, call, stop)
    try:
        model.__class__ = recorder
    except TypeError:
        raise CaptureError(
            f"the calls of a {kind.__name__} cannot be recorded", hint="record a Python module"
        ) from None
    call.open = True
    try:
        yield call
    except LoopLeft:
        pass
    finally:
        call.open = False
        if type(model) is recorder:
            model.__class__ = kind


def recording(kind: type[nn.Module], call: Taker, stop: bool) -> type[nn.Module]:
    """Make a subclass whose forward passes its arguments to `call`, and ends the loop if that accepts them and `stop`
    is set. Libraries that wrap the model's forward wrap this one. Copies of the model have the original class."""

    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *args: object, **kwargs: object) -> Any:
        if self is call.model and call.take(args, kwargs) and stop:
            raise LoopLeft
        return kind.forward(self, *args, **kwargs)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        return (object.__new__, (kind,), *kind.__reduce_ex__(self, protocol)[2:])

    space = {"forward": forward, "__reduce_ex__": reduce, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**space, "__qualname__": kind.__qualname__})
