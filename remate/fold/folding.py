"""From a flat step and its reruns to the blocks, the program and the plans of a schedule file: the inverse of expand."""

from __future__ import annotations

from collections.abc import Sequence

from remate_runtime.step import FlatRerun

from ..capture.captured import Captured
from ..partition.hierarchy import Hierarchy, whole
from .program import Folded, write

__all__ = ["Folded", "fold", "fold_flat"]


def fold(
    captured: Captured,
    reruns: Sequence[FlatRerun],
    hierarchy: Hierarchy,
    menu: Sequence[Sequence[FlatRerun]] = (),
) -> Folded:
    """Blocks, program, top-level reruns and model signature of a schedule file.

    captured: the step in the hierarchy's order (`hierarchy.captured`, perhaps with costs filled in). reruns: over the
    same operations. Equal blocks become one template. menu: plans that their block offers to those who edit the file, each
    given as reruns within one instance.
    """
    return write(captured, tuple(reruns), hierarchy.parts, menu)


def fold_flat(captured: Captured, reruns: Sequence[FlatRerun]) -> Folded:
    """The same for a step without hierarchy: one block, one instance named `model`."""
    return fold(captured, reruns, whole(captured))
