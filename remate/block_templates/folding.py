"""From a flat step and its recomputations to the blocks, the program and the plans of a schedule file: the inverse of
expand."""

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
    """Blocks, program, top-level recomputations and model signature of a schedule file.

    captured: the step in the hierarchy's order (`hierarchy.captured`, perhaps with costs filled in). recomputes: over
    the same operations. Equal blocks become one template. menu: plans that their block offers to those who edit the
    file, each given as recomputations within one instance. pages: over the same operations and values.
    """
    return write(captured, tuple(recomputes), hierarchy.parts, menu, pages)


def fold_flat(captured: Captured, recomputes: Sequence[FlatRecompute]) -> Folded:
    """The same for a step without hierarchy: one block, one instance named `model`."""
    return fold(captured, recomputes, whole(captured))
