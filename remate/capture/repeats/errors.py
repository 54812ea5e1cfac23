"""The reasons to trace a block in its place."""

from __future__ import annotations

from typing import Any


class UnlikeError(Exception):
    """Raised if a block differs from its first run."""


class OtherLayoutError(UnlikeError):
    """Raised if gradients of a block's outputs have a different memory layout than in its template.

    Attributes:
        number: Of the block.
        layouts: Of the gradients.
    """

    def __init__(self, number: int, layouts: tuple[Any, ...]) -> None:
        super().__init__("a gradient has a different memory layout")
        self.number, self.layouts = number, layouts
