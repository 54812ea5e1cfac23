"""How forward computed a number from sizes: a tree of Size and (operation, operands...); and which records with such
trees belong together in several captures."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from remate_runtime.format import Size, is_tuple

from ..capture.sizes import ARITHMETIC
from .fitting import SizeFitter

_WORDS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}
_Record = TypeVar("_Record")


def aligned(
    logs: Sequence[Iterable[_Record]], kind: Callable[[_Record], Hashable]
) -> tuple[list[list[_Record]], list[list[_Record]]]:
    """Return records of one kind in all captures: the first of all together, the second, and so on. Also returns all
    records of each kind that is not equally frequent in the captures."""
    kinds = [by_kind(log, kind) for log in logs]
    rows, uneven = list[list[_Record]](), list[list[_Record]]()
    for name in dict.fromkeys(name for each in kinds for name in each):
        taken = [each.get(name, list[_Record]()) for each in kinds]
        if len({len(each) for each in taken}) == 1:
            rows += [list(row) for row in zip(*taken, strict=True)]
        else:
            uneven.append([record for each in taken for record in each])
    return rows, uneven


def by_kind(log: Iterable[_Record], kind: Callable[[_Record], Hashable]) -> dict[Hashable, list[_Record]]:
    """Return the records of a capture by their kind, in order."""
    kinds: dict[Hashable, list[_Record]] = {}
    for record in log:
        kinds.setdefault(kind(record), []).append(record)
    return kinds


def shape(tree: Any) -> Any:
    """Return the operations of a tree, without its numbers."""
    return (tree[0], *map(shape, tree[1:])) if is_tuple(tree) else None


def fitted(trees: Sequence[Any], fitter: SizeFitter) -> Any:
    """Return the one tree of several captures, with expressions in place of numbers; None if some numbers have none."""
    if not is_tuple(trees[0]):
        return next(iter(fitter.sizes(trees)), None)
    below = [fitted([tree[at] for tree in trees], fitter) for at in range(1, len(trees[0]))]
    return None if any(part is None for part in below) else (trees[0][0], *below)


def evaluated(tree: Any, sizes: Mapping[str, int]) -> int:
    """Return the number of a tree of expressions. Raises ZeroDivisionError, ScheduleError."""
    if isinstance(tree, Size):
        return tree.at(sizes)
    return ARITHMETIC[tree[0]](*(evaluated(part, sizes) for part in tree[1:]))


def dims_of(tree: Any) -> frozenset[str]:
    """Return the named sizes in a tree of expressions."""
    return tree.dims if isinstance(tree, Size) else frozenset[str]().union(*map(dims_of, tree[1:]))


def tree_text(tree: Any) -> str:
    """Write a tree of expressions as Python does."""
    if isinstance(tree, Size):
        return str(tree)
    parts = [f"({tree_text(part)})" if not _plain(part) else tree_text(part) for part in tree[1:]]
    word = _WORDS.get(tree[0])
    return f" {word} ".join(parts) if word else f"{tree[0]}({', '.join(parts)})"


def _plain(tree: Any) -> bool:
    return isinstance(tree, Size) and len(tree.terms) < 2
