"""Attributes that forward sets to numbers, text, shapes or containers of them. A scheduled step sets them, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from remate_runtime.bind import can_be_set
from remate_runtime.format import attributes_of, is_array, is_attribute, literals_in, returned_by

from . import trees
from .kinds import kind_of

_LEAVES = 256  # numbers and texts of one attribute
_CHARACTERS = 1024  # of a text
_INTEGER = 1 << 62


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text, None, or a container of these."""
    if kind_of(value) is dict:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if is_array(value):
        return type(value) in (tuple, list, torch.Size) and all(map(is_plain, value))
    return value is None or isinstance(value, int | float | complex | str)


class PlainAttributes:
    """What the runs of forward in one trace set plain attributes to.

    Attributes:
        trees: What a schedule sets them to, by path.
        lost: Paths of attributes that a schedule cannot set, and that differed before.
    """

    def __init__(self, model: nn.Module, can_follow: bool) -> None:
        """can_follow: Whether a file can say what they are set to. It cannot if they may follow from live numbers."""
        self._model, self._can_follow = model, can_follow
        self._varying: set[str] = set()
        self._runs = 0
        self.trees: dict[str, Any] = {}
        self.lost: set[str] = set()

    def note(self, attributes: Iterable[tuple[str, object, object]]) -> None:
        """Record a run. attributes: path, value before the run, and value of each that the run set without having read
        it."""
        trees_of_run, before = dict[str, Any](), self.trees
        for path, old, value in attributes:
            tree = _tree(value)
            if tree is not None and self._can_follow and is_attribute(path) and can_be_set(self._model, path):
                trees_of_run[path] = tree
            elif not is_plain(old) or tree is None or tree != _tree(old):
                self.lost.add(path)
        if self._runs:  # the clock, or a counter of the process
            self._varying |= {path for path in {**before, **trees_of_run} if before.get(path) != trees_of_run.get(path)}
        self._runs += 1
        self.lost |= self._varying
        self.trees = {path: tree for path, tree in trees_of_run.items() if path not in self._varying}

    def added_to(self, outputs: Any) -> Any:
        """Return the tree of a step's outputs with these attributes."""
        if not self.trees:
            return outputs
        return {"returns": returned_by(outputs), "attributes": {**self.trees, **attributes_of(outputs)}}


def _tree(value: object) -> Any:
    """Return the tree of a value for a file; None if a file cannot hold it."""
    opaque: list[object] = []
    tree = trees.describe(value, "", lambda tensor, path: {}, lambda node, path: opaque.append(node))
    literals = literals_in(tree)
    return None if opaque or len(literals) > _LEAVES or not all(map(_fits, literals)) else tree


def _fits(literal: object) -> bool:
    if type(literal) is int:
        return -_INTEGER <= literal <= _INTEGER
    return not isinstance(literal, str) or len(literal) <= _CHARACTERS
