"""The line of the user's code that is running."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import islice
from types import CodeType, FrameType, TracebackType

import msgspec
import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_PASSED = os.path.join(_HERE, "repeats") + os.sep  # its frames are between a module and its caller
# The frame so many calls above the running one. `inspect.currentframe` would be one more call for each operation.
frame_above: Callable[[int], FrameType] = vars(sys)["_getframe"]


class SourcePlace(msgspec.Struct, frozen=True):
    """A line of the user's code. line: `file.py:12`, for messages. source: `file.py:Block.forward+3`, counted from the
    start of the function, so that edits elsewhere do not change it. Both are "" if unknown."""

    line: str = ""
    source: str = ""


def user_place(frame: FrameType | None) -> SourcePlace:
    """Return the line of the innermost frame of user code, or a line of torch.nn if the model has no code."""
    return calling_place(frame)[0]


def calling_place(frame: FrameType | None) -> tuple[SourcePlace, bool]:
    """Like `user_place`. Also returns whether the line is the user's."""
    library = SourcePlace()
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_HERE):
            if not file.startswith(_PASSED):
                break
        elif not file.startswith((_TORCH, "<")):
            return _place(frame), True
        elif not library.line and f"{os.sep}nn{os.sep}modules{os.sep}" in file and not file.endswith("module.py"):
            library = _place(frame)
        frame = frame.f_back
    return library, False


def _place(frame: FrameType) -> SourcePlace:
    file, number = os.path.basename(frame.f_code.co_filename), frame.f_lineno
    function = _function(frame)
    name = function.co_qualname.replace("<locals>.", "")
    return SourcePlace(f"{file}:{number}", f"{file}:{name}+{max(0, number - function.co_firstlineno)}")


def _function(frame: FrameType) -> CodeType:
    """The code from whose start a line is counted. A comprehension belongs to its function, as from Python 3.12 on."""
    while frame.f_code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>") and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code


class FailedPosition(msgspec.Struct, frozen=True):
    """An expression in a file. start, end: line, and byte in the line."""

    file: str
    start: tuple[int, int]
    end: tuple[int, int]


def failed_line(error: BaseException) -> str:
    """Return `file.py:line` of the user's code that raised `error`, or ""."""
    last = _failed(error)
    return "" if last is None else f"{os.path.basename(last.tb_frame.f_code.co_filename)}:{last.tb_lineno}"


def failed_position(error: BaseException) -> FailedPosition | None:
    """Return the expression of the user's code that raised `error`; None if it is unknown."""
    last = _failed(error)
    if last is None:
        return None
    code = last.tb_frame.f_code
    line, end_line, column, end_column = next(islice(code.co_positions(), last.tb_lasti // 2, None))
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return FailedPosition(code.co_filename, (line, column), (end_line, end_column))


def _failed(error: BaseException) -> TracebackType | None:
    """The innermost entry of the traceback in user code."""
    entry, last, inside = error.__traceback__, None, False
    while entry is not None:
        file = entry.tb_frame.f_code.co_filename
        inside = inside or file.startswith(_HERE)
        if inside and not file.startswith((_TORCH, _HERE, "<")):
            last = entry
        entry = entry.tb_next
    return last
