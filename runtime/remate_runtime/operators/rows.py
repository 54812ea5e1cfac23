"""What operators do with rows, for the statement `split`: `schema/rows-1.json`, which a second implementation reads as
well."""

from __future__ import annotations

from typing import Literal

import msgspec

from .tables import path

_NAME = "rows-1.json"


class RowRule(msgspec.Struct, frozen=True):
    """What an operator does with rows.

    rule: elementwise, with broadcasting; along: rows of the arguments `cut` give rows of the result; product, of the
    matrices `cut`; reduce: over the axes of the second argument; sized: its argument `size` is the shape of the result,
    whose elements are equal; loss: `nll_loss`; drawn: a random mask, which is drawn whole. over: position of the axis
    that it computes along, where no rows may be. leading: rows must be within so many first axes. trailing: position of
    an argument with the sizes of the last axes, which are no rows. count: position of the number of rows. out: for each
    result whether it has rows, or is a sum over all rows. reduces: position of an argument that must be 0, for no
    reduction. rounds: its kernels may round fewer rows otherwise.
    """

    rule: Literal["elementwise", "along", "product", "reduce", "sized", "loss", "loss_backward", "drawn"]
    cut: tuple[int, ...] = ()
    over: int | None = None
    leading: int | None = None
    trailing: int | None = None
    count: int | None = None
    out: tuple[Literal["rows", "sum"], ...] = ()
    size: int | None = None
    reduces: int | None = None
    rounds: bool = False


class RowTables(msgspec.Struct, frozen=True):
    """The contents of the file. views: how operators change axes. barriers: reasons why operators cannot be split.
    Operators without a rule cannot be split either."""

    format: str
    version: int
    operators: dict[str, RowRule]
    views: dict[str, Literal["reshape", "transpose", "permute", "squeeze", "unsqueeze", "expand", "same", "slice"]]
    barriers: dict[str, str]


ROWS = msgspec.json.decode(path(_NAME).read_bytes(), type=RowTables)
