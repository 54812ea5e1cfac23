"""Knows, while a model runs, which of its modules and which line of its code is running."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep


class Watch(TorchFunctionMode):
    """`changed(module path, source)` is called whenever either changes. Hooks are global: the model is not touched."""

    def __init__(self, model: torch.nn.Module, changed: Callable[[str, str], None]) -> None:
        super().__init__()
        self._names: dict[int, str] = {}
        for name, module in model.named_modules(remove_duplicate=True):
            self._names[id(module)] = name
        self._changed = changed
        self.stack: list[str] = []
        self.source = ""

    @property
    def module(self) -> str:
        return self.stack[-1] if self.stack else ""

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the model's forward runs. After an exception `module` still names the module that failed."""
        self.stack, self.source = [], ""
        hooks = (register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave))
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        source = user_line(sys._getframe(1))
        if source != self.source:
            self.source = source
            self._changed(self.module, source)
        return func(*args, **(kwargs or {}))

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if id(module) in self._names:
            self.stack.append(self._names[id(module)])
            self._changed(self.module, self.source)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        name = self._names.get(id(module))
        if name in self.stack:
            while self.stack.pop() != name:
                pass
            self._changed(self.module, self.source)


def user_line(frame: FrameType | None) -> str:
    """`file.py:line` of the innermost frame that is the user's; torch.nn's own if a model has no code of its own."""
    library = ""
    while frame is not None and not frame.f_code.co_filename.startswith(_HERE):
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, "<")):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        if not library and f"{os.sep}nn{os.sep}modules{os.sep}" in file and not file.endswith("module.py"):
            library = f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return library


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
