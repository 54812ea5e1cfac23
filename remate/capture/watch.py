"""Tracks the module and the line of code that run in a forward."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from remate_runtime.bind import modules_by_path

from ..errors import CaptureError
from .hidden_state import UNSEEN, SeenCalls, as_conversion
from .places import SourcePlace, calling_place, frame_above
from .refused_calls import refusal

if TYPE_CHECKING:
    from .repeats.recording import CallRecorder, CallReplay


class AttributeWatch(TorchFunctionMode):
    """Tracks the running module and line. Hooks are global, so the model does not change. Raises CaptureError for calls
    that no schedule can contain, and for calls that differ from the last run.

    Args:
        model: The model.
        changed: Called with the module's path and the place whenever either changes.
        substitute: Called with each function of tensors and its result; returns the result to use.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        changed: Callable[[str, SourcePlace], None],
        substitute: Callable[[Any, Any], object] | None = None,
    ) -> None:
        super().__init__()
        self._substitute = substitute
        self._names: dict[int, str] = {}
        for name, module in modules_by_path(model, each_once=True).items():
            self._names[id(module)] = name
        self._changed = changed
        self.stack: list[str] = []
        self.place = SourcePlace()
        self._calls = SeenCalls()
        self._outer = SourcePlace()
        self._recorder: CallRecorder | None = None
        self._replay: CallReplay | None = None

    @property
    def module(self) -> str:
        return self.stack[-1] if self.stack else ""

    @contextmanager
    def running(self) -> Generator[None]:
        """Track the model's forward in the `with` block. After an exception `module` is the module that failed."""
        self.stack, self.place = [], SourcePlace()
        hooks = (register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave))
        try:
            self._calls.begin()
            with self:
                yield
            if not (self._calls.end() if self._replay is None else self._replay.whole):
                raise self._other_step("some operations in one call, none in the next")
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def within(self, path: str, caller: SourcePlace) -> Generator[None]:
        """Track the module at `path`, which runs without a call. caller: the line of the model that calls it, if it is
        the user's."""
        self.stack.append(path)
        self._outer = caller
        self._changed(path, self.place)
        try:
            yield
        finally:
            self._outer = SourcePlace()
            self.stack.remove(path)

    def expect_without(self, parts: list[tuple[int, int]]) -> None:
        """Expect the calls of the first run without these ranges from now on."""
        self._calls = self._calls.without(parts)

    @contextmanager
    def followed_by(self, recorder: CallRecorder) -> Generator[None]:
        """Report forward's calls of torch to `recorder` in the `with` block."""
        self._recorder = recorder
        try:
            yield
        finally:
            self._recorder = None

    @contextmanager
    def repeating(self, replay: CallReplay) -> Generator[None]:
        """Compute nothing in the `with` block: `replay` returns the results of functions of tensors."""
        self._replay = replay
        try:
            yield
        finally:
            self._replay = None

    def forget(self) -> None:
        """Forget the calls so far."""
        self._calls, self._recorder = SeenCalls(), None

    def finished(self, returned: list[torch.Tensor]) -> None:
        """Report the tensors that forward returned."""
        if self._recorder is not None:
            self._recorder.finished(returned)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in UNSEEN:
            return func(*args, **(kwargs or {}))
        place, is_users = calling_place(frame_above(1))
        if not is_users and self._outer.line:
            place = self._outer
        if place != self.place:
            self.place = place
            self._changed(self.module, place)
        refused = refusal(func)
        if refused is not None:
            raise CaptureError(refused[0], self.module, place.line, refused[1])
        called, named = as_conversion(func, kwargs or {})
        if self._replay is not None:
            result = self._replay.called(called, args, named, self.module, place)
            return result if self._substitute is None else self._substitute(func, result)
        differs = self._calls.differs(called, args, named)
        if differs:
            raise self._other_step(differs)
        try:
            result = func(*args, **(kwargs or {}))
        except Exception as error:
            self._note(called, args, named, error, place)  # forward may handle it
            raise
        self._note(called, args, named, result, place)
        return result if self._substitute is None else self._substitute(func, result)

    def _note(self, func: object, args: object, kwargs: object, result: object, place: SourcePlace) -> None:
        if self._recorder is not None:
            self._recorder.called(func, args, kwargs, result, self.module, place)

    def _other_step(self, differs: str) -> CaptureError:
        return CaptureError(
            f"forward computes something else at its next call: {differs}",
            self.module,
            self.place.line,
            "what changes from call to call must be an input or a buffer of the module",
        )

    def _enter(self, module: torch.nn.Module, args: object) -> None:
        if id(module) in self._names:
            self.stack.append(self._names[id(module)])
            self._changed(self.module, self.place)

    def _leave(self, module: torch.nn.Module, args: object, output: object) -> None:
        name = self._names.get(id(module))
        if name in self.stack:
            while self.stack.pop() != name:
                pass
            self._changed(self.module, self.place)
