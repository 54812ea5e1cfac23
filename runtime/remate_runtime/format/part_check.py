"""Checks the place of a part in the enclosing model. Does not require torch."""

from __future__ import annotations

import re

from .limits import MAX_CALLS, MAX_NAME
from .literals import Faults
from .module_paths import count_paths
from .schedule import Model

_NAME = r"(?:[A-Za-z0-9_~-]+|\[[0-9]{1,9}-[0-9]{1,9}\])"  # of a module, or a run of numbers
_PATH = re.compile(rf"{_NAME}(?:\.{_NAME})*")


def check_parts(faults: Faults, model: Model, where: str) -> None:
    """Check the fields `at` and `calls`."""
    paths = 0
    for index, path in enumerate(model.at):
        count = count_paths(path)
        if len(path) > MAX_NAME:
            faults.add("R073", f"a path of more than {MAX_NAME} characters", f"{where}/at/{index}", "")
        elif not _PATH.fullmatch(path) or not count:
            hint = "write transformer.h.3, or transformer.h.[0-11] for twelve modules"
            faults.add("R014", f"{path[:80]!r} is not a path of a module", f"{where}/at/{index}", hint)
        paths += count
    if not 1 <= model.calls <= MAX_CALLS or paths * model.calls > MAX_CALLS:
        faults.add("R013", f"calls are 1 to {MAX_CALLS}, of all modules together", f"{where}/calls", "")
    elif model.calls > 1 and not model.at:
        hint = "name them, or delete this line"
        faults.add("R013", "calls of parts, and no module of `at` makes them", f"{where}/calls", hint)
