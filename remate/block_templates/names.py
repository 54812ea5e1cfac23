"""Names in a schedule file: unique local ids of a block's operations in the format's alphabet."""

from __future__ import annotations

import re

_OTHER = re.compile(r"[^A-Za-z0-9_.~-]")


class NameAllocator:
    """Assigns names; a name in use gets `_2`, `_3`, … in order of requests."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def take(self, wanted: str) -> str:
        wanted = clean(wanted)
        name, k = wanted, self._next.get(wanted, 2)
        while name in self._taken:
            name, k = f"{wanted}_{k}", k + 1
        self._next[wanted] = k
        self._taken.add(name)
        return name


def clean(text: str) -> str:
    """Return `text` with every character outside the format's alphabet replaced."""
    return _OTHER.sub("_", text) or "_"


def relative(path: str, prefix: str) -> str:
    """Return `path` relative to the module `prefix`: without the components that both share."""
    components, enclosing = path.split("."), prefix.split(".") if prefix else []
    shared = 0
    while shared < min(len(components), len(enclosing)) and components[shared] == enclosing[shared]:
        shared += 1
    return ".".join(components[shared:])


def packet(op: str) -> str:
    """Return the operator's own name: `aten.add.Tensor` -> `add`."""
    return op.split(".")[1] if "." in op else op


def joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)
