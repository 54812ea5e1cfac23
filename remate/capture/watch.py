"""Knows, while a model runs, which of its modules and which line of its code is running."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import msgspec
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from ..errors import CaptureError
from .hidden_state import Calls
from .refused_calls import refusal

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep


class Place(msgspec.Struct, frozen=True):
    """A line of the user's code. line: `file.py:12`, for people who read it now. source: `file.py:Block.forward+3`, lines
    after the first one of the function, which edits elsewhere in the file do not move. Both "" if it is not known."""

    line: str = ""
    source: str = ""


class Watch(TorchFunctionMode):
    """`changed(module path, place)` is called whenever either changes. `made(function, result)` stands in for what functions
    of tensors return. Hooks are global: the model is not touched. Raises CaptureError where forward does what no schedule can
    hold, or something else than in its last run."""

    def __init__(
        self,
        model: torch.nn.Module,
        changed: Callable[[str, Place], None],
        made: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self._made = made
        self._names: dict[int, str] = {}
        for name, module in model.named_modules(remove_duplicate=True):
            self._names[id(module)] = name
        self._changed = changed
        self.stack: list[str] = []
        self.place = Place()
        self._calls = Calls()

    @property
    def module(self) -> str:
        return self.stack[-1] if self.stack else ""

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the model's forward runs. After an exception `module` still names the module that failed."""
        self.stack, self.place = [], Place()
        hooks = (register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave))
        try:
            self._calls.begin()
            with self:
                yield
            if not self._calls.end():
                raise self._other_step("some operations in one call, none in the next")
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place = user_place(sys._getframe(1))
        if place != self.place:
            self.place = place
            self._changed(self.module, place)
        refused = refusal(func)
        if refused is not None:
            raise CaptureError(refused[0], self.module, place.line, refused[1])
        differs = self._calls.differs(func, args, kwargs or {})
        if differs:
            raise self._other_step(differs)
        result = func(*args, **(kwargs or {}))
        return result if self._made is None else self._made(func, result)

    def _other_step(self, differs: str) -> CaptureError:
        return CaptureError(
            f"forward computes something else at its next call: {differs}",
            self.module,
            self.place.line,
            "what changes from call to call must be an input or a buffer of the module",
        )

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if id(module) in self._names:
            self.stack.append(self._names[id(module)])
            self._changed(self.module, self.place)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        name = self._names.get(id(module))
        if name in self.stack:
            while self.stack.pop() != name:
                pass
            self._changed(self.module, self.place)


def user_place(frame: FrameType | None) -> Place:
    """The line of the innermost frame that is the user's; torch.nn's own if a model has no code of its own."""
    library = Place()
    while frame is not None and not frame.f_code.co_filename.startswith(_HERE):
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, "<")):
            return _place(frame)
        if not library.line and f"{os.sep}nn{os.sep}modules{os.sep}" in file and not file.endswith("module.py"):
            library = _place(frame)
        frame = frame.f_back
    return library


def _place(frame: FrameType) -> Place:
    file, number = os.path.basename(frame.f_code.co_filename), frame.f_lineno
    function = _function(frame)
    name = function.co_qualname.replace("<locals>.", "")
    return Place(f"{file}:{number}", f"{file}:{name}+{max(0, number - function.co_firstlineno)}")


def _function(frame: FrameType) -> CodeType:
    """The code that a line is counted in. A comprehension is part of the function that it stands in, as it is from
    Python 3.12 on, where it has no frame of its own."""
    while frame.f_code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>") and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code


def failed_line(error: BaseException) -> str:
    """`file.py:line` of the user's code that raised `error`, "" if none did."""
    line = ""
    inside = False
    for frame, number in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        inside = inside or file.startswith(_HERE)
        if inside and not file.startswith((_TORCH, _HERE, "<")):
            line = f"{os.path.basename(file)}:{number}"
    return line
