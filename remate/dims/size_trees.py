"""How forward computed a number from sizes: a tree of Size and (operation, operands...)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remate_runtime.format import Size

from ..capture.sizes import ARITHMETIC
from .fitting import SizeFitter

_WORDS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}


def shape(tree: Any) -> Any:
    """Return the operations of a tree, without its numbers."""
    return (tree[0], *map(shape, tree[1:])) if isinstance(tree, tuple) else None


def fitted(trees: Sequence[Any], fitter: SizeFitter) -> Any:
    """Return the one tree of several captures, with expressions in place of numbers; None if some numbers have none."""
    if not isinstance(trees[0], tuple):
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
