"""`remate diff --git`: the diff driver that git calls.

It exits with 0, because git stops otherwise. Files that are not valid schedules are shown as a text diff.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from remate_runtime.errors import RemateError

from . import exit_codes
from .output import say
from .usage import UsageError

_NOTHING = "/dev/null"  # git passes this for an added or deleted file


def drive(files: list[str]) -> int:
    """Print the differences.

    Args:
        files: path old-file old-hex old-mode new-file new-hex new-mode [new-path similarity]; for an unmerged path, the
            path alone.
    """
    if len(files) == 1:
        say(f"* unmerged path {files[0]}")
        return exit_codes.FINE
    if len(files) < 7:
        raise UsageError("--git takes the arguments of git: path old-file old-hex old-mode new-file new-hex new-mode")
    path, old, new = files[0], files[1], files[4]
    renamed = f" -> {files[7]}" if len(files) > 7 else ""
    say(f"schedule {path}{renamed}")
    say(_described(path, old, new))
    return exit_codes.FINE


def _described(path: str, old: str, new: str) -> str:
    from ..present.changes import described
    from ..present.text import duration, plain, size
    from ..schedule_tools.analysis import open_schedule
    from ..schedule_tools.diff import compare

    try:
        if _NOTHING in (old, new):
            opened = open_schedule(old if new == _NOTHING else new)
            word = "deleted" if new == _NOTHING else "new"
            peak, time = size(opened.timeline.peak), duration(opened.timeline.time)
            return f"{word} schedule {plain(opened.schedule.name)}: peak {peak}, time {time}"
        return described(compare(open_schedule(old), open_schedule(new)))
    except RemateError as error:
        return f"{_as_text(path, old, new)}\n(as text: {str(error).splitlines()[0]})"


def _as_text(path: str, old: str, new: str) -> str:
    before, after = (Path(file).read_text(encoding="utf-8", errors="replace").splitlines() for file in (old, new))
    return "\n".join(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", lineterm=""))
