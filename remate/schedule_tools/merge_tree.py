"""Three-way merge of JSON trees by meaning: entries of maps and keyed lists instead of lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from remate_runtime.format import Json

Side = Literal["ours", "theirs"]
Path = tuple[str, ...]
_GONE: Any = object()
KeysOf = Callable[[Path, list[Any]], list[Any] | None]  # keys of a list's items; None: the list is one value


class TreeMerge:
    """One merge. prefer: whose value wins where both sides changed the same entry. keys_of: keys for the items of a
    list. conflicts: paths that both sides changed differently."""

    def __init__(self, prefer: Side, keys_of: KeysOf) -> None:
        self.conflicts: list[Path] = []
        self._prefer, self._keys_of = prefer, keys_of

    def merged(self, base: Json, ours: Json, theirs: Json, path: Path = ()) -> Any:
        """Merge the changes of both sides to `base`."""
        if ours == theirs or theirs == base:
            return ours
        if ours == base:
            return theirs
        if isinstance(ours, dict) and isinstance(theirs, dict):
            return self._maps(base if isinstance(base, dict) else {}, ours, theirs, path)
        if isinstance(ours, list) and isinstance(theirs, list):
            named = [self._named(path, side) for side in (base if isinstance(base, list) else [], ours, theirs)]
            if named[0] is not None and named[1] is not None and named[2] is not None:
                return list(self._maps(named[0], named[1], named[2], path).values())
        self.conflicts.append(path)
        return ours if self._prefer == "ours" else theirs

    def _named(self, path: Path, items: list[Any]) -> dict[Any, Any] | None:
        """The items of a list by their keys; None if the list is one value."""
        keys = self._keys_of(path, items)
        return None if keys is None or len(set(keys)) < len(keys) else dict(zip(keys, items, strict=True))

    def _maps(self, base: dict[Any, Any], ours: dict[Any, Any], theirs: dict[Any, Any], path: Path) -> dict[Any, Any]:
        merged: dict[Any, Any] = {}
        for key in _order(list(base), list(ours), list(theirs)):
            where = (*path, key if isinstance(key, str) else str(key[0]))
            value = self.merged(base.get(key, _GONE), ours.get(key, _GONE), theirs.get(key, _GONE), where)
            if value is not _GONE:
                merged[key] = value
        return merged


def _order(base: list[Any], ours: list[Any], theirs: list[Any]) -> list[Any]:
    """The order of the side that changed it (ours if both did). Each additional key of the other side follows its
    predecessor there."""
    first, second = (theirs, ours) if ours == base else (ours, theirs)
    keys, known = list(first), set(first)
    after: Any = None
    for key in second:
        if key not in known:
            at = keys.index(after) + 1 if after is not None else 0
            keys.insert(at, key)
            known.add(key)
        after = key
    return keys
