"""Layouts of ranks: how a cluster trains one model, and what of it one rank does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..budget import BudgetError

_DIMENSIONS = ("dp", "tp", "pp")


class RankLayout(msgspec.Struct, frozen=True):
    """How ranks are arranged. Ranks of `tp` are neighbours, then those of `dp`, then those of `pp`.

    Attributes:
        dp: Ranks with different samples.
        tp: Ranks that divide each layer.
        pp: Ranks with different layers.
        microbatch: Samples of one call of a rank.
        microbatches: Calls of a rank for the batch.
        mesh: A device mesh with the dimensions "dp" and "tp", for `parallelize_module`.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    microbatch: int = 1
    microbatches: int = 1
    mesh: Any = None

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp

    def __str__(self) -> str:
        return f"dp={self.dp},tp={self.tp},pp={self.pp}"


def layout_named(text: str) -> RankLayout:
    """Return the layout of a text, `dp=8,tp=2,pp=1`. What is left out is 1. Raises BudgetError."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if name not in _DIMENSIONS or name in sizes or not number.isdecimal() or not int(number):
            raise BudgetError(f"{text!r} is not a layout of ranks\n  hint: write dp=8,tp=2,pp=1")
        sizes[name] = int(number)
    return RankLayout(**sizes)


def layouts_of(devices: int, machine: int) -> list[RankLayout]:
    """Return all layouts of a number of devices. Ranks that divide a layer are in one machine.

    Args:
        devices: Number of devices.
        machine: Devices of a machine.
    """
    layouts = [
        RankLayout(dp, tp, devices // tp // dp)
        for tp in _divisors(devices)
        if tp <= machine
        for dp in reversed([*_divisors(devices // tp)])
    ]
    return sorted(layouts, key=lambda layout: (layout.pp, layout.tp))


def with_batch(layout: RankLayout, batch: int, microbatch: int) -> RankLayout | None:
    """Return the layout for a batch; None if its ranks cannot divide the batch evenly.

    Args:
        layout: The layout.
        batch: Samples of all ranks for one step of the optimizer.
        microbatch: Samples of one call of a rank.
    """
    calls, rest = divmod(batch, layout.dp * microbatch)
    return None if rest else msgspec.structs.replace(layout, microbatch=microbatch, microbatches=calls)


def _divisors(number: int) -> Iterator[int]:
    return (at for at in range(1, number + 1) if number % at == 0)
