"""While tracing: `torch.compiler.is_compiling()` returns False, so that code takes eager's branch.

If that branch reads a tensor's value, which tracing cannot do, the call returns True for that function only, with a
warning, because the capture then differs from eager. This module uses unstable interfaces.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Generator
from types import CodeType, FrameType

import torch
import torch.compiler

from .places import frame_above

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep


class Branches:
    """The functions for which `is_compiling()` returns True: none at first. `taken`: those that called it."""

    def __init__(self) -> None:
        self._requested: set[CodeType] = set()
        self._compiled: dict[CodeType, str] = {}  # with the line that read a value
        self._taken: dict[CodeType, str] = {}

    @property
    def taken(self) -> list[str]:
        return list(self._taken.values())

    @property
    def learned(self) -> bool:
        """Whether `is_compiling()` returns True for any function."""
        return bool(self._compiled)

    @contextlib.contextmanager
    def answered(self) -> Generator[None]:
        """Patch torch.compiler.is_compiling() in the `with` block. `is_exporting()` stays False, because branches for
        export serve other shapes than the example's."""
        saved, flag = torch.compiler.is_compiling, torch.compiler._is_compiling_flag
        torch.compiler.is_compiling = self._answer
        torch.compiler._is_compiling_flag = False
        self._taken = {}
        try:
            with torch.compiler.set_stance("force_eager"):
                yield
        finally:
            torch.compiler.is_compiling, torch.compiler._is_compiling_flag = saved, flag

    def learn(self, error: BaseException) -> bool:
        """Handle a trace that failed because it read a tensor's value. From now on `is_compiling()` returns True for
        the innermost function on the stack that called it. Returns whether there is one, so that tracing can be tried
        again."""
        frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _users(frame)]
        for frame, _ in reversed(frames):
            code = frame.f_code
            if code in self._requested and code not in self._compiled:
                last, line = frames[-1]
                self._compiled[code] = f"{code.co_name} ({os.path.basename(last.f_code.co_filename)}:{line})"
                return True
        return False

    def _answer(self) -> bool:
        frame: FrameType | None = frame_above(1)
        if frame.f_code.co_filename.startswith(_TORCH):
            return False
        while frame is not None and not frame.f_code.co_filename.startswith(_HERE):
            code = frame.f_code
            if code in self._compiled:
                self._taken[code] = self._compiled[code]
                return True
            if _users(frame):
                self._requested.add(code)
            frame = frame.f_back
        return False


def _users(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith((_TORCH, _HERE, "<"))
