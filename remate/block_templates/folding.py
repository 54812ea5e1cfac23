"""Folds a flat step and its recomputations to blocks, program and plans of a schedule file: the inverse of expand."""

from __future__ import annotations

from collections.abc import Sequence

from remate_runtime.flat_step import FlatPage, FlatRecompute

from ..capture.captured import Captured
from ..partition.hierarchy import Hierarchy, whole
from .program import Folded, write

__all__ = ["Folded", "fold", "fold_flat"]


def fold(
    captured: Captured,
    recomputes: Sequence[FlatRecompute],
    hierarchy: Hierarchy,
    menu: Sequence[Sequence[FlatRecompute]] = (),
    pages: Sequence[FlatPage] = (),
) -> Folded:
    """Return blocks, program, top-level recomputations and model signature of a schedule file. Equal blocks share a
    template.

    Args:
        captured: The step in the hierarchy's order (`hierarchy.captured`, possibly with costs).
        recomputes: Recomputations of these operations.
        hierarchy: The hierarchy.
        menu: Plans that a block offers to those who edit the file, each as recomputations within an instance.
        pages: Pages of these values.
    """
    return write(captured, tuple(recomputes), hierarchy.parts, menu, pages)


def fold_flat(captured: Captured, recomputes: Sequence[FlatRecompute]) -> Folded:
    """Fold a step without hierarchy: one block, one instance named `model`."""
    return fold(captured, recomputes, whole(captured))
