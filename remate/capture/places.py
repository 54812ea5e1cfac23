"""Lines of the user's code: which one is running."""

from __future__ import annotations

import os
import traceback
from types import CodeType, FrameType

import msgspec
import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_PASSED = os.path.join(_HERE, "repeats") + os.sep  # stands between a module and the one that calls it


class SourcePlace(msgspec.Struct, frozen=True):
    """A line of the user's code. line: `file.py:12`, for people who read it now. source: `file.py:Block.forward+3`,
    lines after the first one of the function, which edits elsewhere in the file do not move. Both "" if it is not
    known."""

    line: str = ""
    source: str = ""


def user_place(frame: FrameType | None) -> SourcePlace:
    """The line of the innermost frame that is the user's; torch.nn's own if a model has no code of its own."""
    return calling_place(frame)[0]


def calling_place(frame: FrameType | None) -> tuple[SourcePlace, bool]:
    """The same, and whether it is the user's."""
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
