"""Renamed files: `cp model.py model2.py` changes the names of classes and functions, and nothing that they compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from torch import nn

from ..format.module_paths import unfold_paths
from ..format.schedule import Digest
from .ownership import is_own, qualified


def moved(recorded: Digest, modules: Mapping[str, nn.Module], functions: Mapping[str, str | None]) -> Digest:
    """Return the digest with the current names of the user's files.

    Args:
        recorded: The digest.
        modules: Modules of the live model by path.
        functions: Functions of the live model by name.
    """
    names = _new_names(recorded, modules, functions)
    if not names:
        return recorded

    def named(name: str) -> str:
        kind, space, rest = name.rpartition(" ")  # of hooks: "forward: file.hook"
        file, dot, within = rest.partition(".")
        return f"{kind}{space}{names.get(file, file)}{dot}{within}"

    def group(entry: Any) -> Any:
        return replace(entry, kind=named(entry.kind), hooks=tuple(map(named, entry.hooks)))

    return replace(
        recorded,
        functions={named(name): digest for name, digest in recorded.functions.items()},
        values={named(name): value for name, value in recorded.values.items()},
        modules=tuple(map(group, recorded.modules)),
        objects=tuple(map(group, recorded.objects)),
    )


def _new_names(
    recorded: Digest, modules: Mapping[str, nn.Module], functions: Mapping[str, str | None]
) -> dict[str, str]:
    """Return new names of files whose classes and functions are all in exactly one other file now."""
    current = {_file(name) for name in functions}
    counts: Counter[tuple[str, str]] = Counter()
    for group in recorded.modules:
        for path in unfold_paths(group.at):
            kind = type(modules[path]) if path in modules else None
            if kind is not None and is_own(kind.__module__):
                _count(counts, group.kind, qualified(kind))
                current.add(_file(qualified(kind)))
    by_rest: dict[tuple[str, str | None], list[str]] = {}
    for name, digest in functions.items():
        by_rest.setdefault((name.partition(".")[2], digest), []).append(name)
    for name, digest in recorded.functions.items():
        for other in by_rest.get((name.partition(".")[2], digest), ()):
            _count(counts, name, other)
    names: dict[str, str] = {}
    for (old, new), _ in counts.most_common():
        if old not in current:
            names.setdefault(old, new)
    return names


def _count(counts: Counter[tuple[str, str]], old: str, new: str) -> None:
    if old != new and old.partition(".")[2] == new.partition(".")[2]:
        counts[_file(old), _file(new)] += 1


def _file(name: str) -> str:
    return name.partition(".")[0]
