"""Why a block is traced in its place after all."""

from __future__ import annotations

from typing import Any


class UnlikeError(Exception):
    """Something is not as it was where it was looked at before."""


class OtherLayoutError(UnlikeError):
    """The gradients of what a block makes have a different memory layout than in its template. number: of the block.
    layouts: how they lie."""

    def __init__(self, number: int, layouts: tuple[Any, ...]) -> None:
        super().__init__("a gradient has a different memory layout")
        self.number, self.layouts = number, layouts
