"""Why a block is traced in its place after all."""

from __future__ import annotations

from typing import Any


class UnlikeError(Exception):
    """Something is not as it was where it was looked at before."""


class OtherLayoutError(UnlikeError):
    """The gradients of what a block makes lie otherwise than in its template. number: of the block. layouts: how they lie."""

    def __init__(self, number: int, layouts: tuple[Any, ...]) -> None:
        super().__init__("a gradient is laid out otherwise")
        self.number, self.layouts = number, layouts
