"""A step whose windows are split, with the costs of its tiles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import Expanded, FlatRecompute, expand
from remate_runtime.format import SPLIT_FEATURE, Recompute, Schedule, Split

from ..partition.hierarchy import BlockSpan
from .statements import divided
from .tile_blocks import tile_blocks
from .tile_costs import Price, TileCosts, merged, tile_costs
from .windows import Window


class TiledStep(msgspec.Struct, frozen=True):
    """A step whose windows are split.

    Attributes:
        expanded: The step.
        splits: The statements of the file.
        costs: Costs and workspaces of what the splits add.
        blocks: The hierarchy of the split step.
    """

    expanded: Expanded
    splits: tuple[Split, ...]
    costs: TileCosts
    blocks: tuple[BlockSpan, ...]

    def divided(self, recomputes: Sequence[FlatRecompute]) -> tuple[tuple[FlatRecompute, ...], tuple[Recompute, ...]]:
        """Divide recomputations of the split step into those of the step before, and statements of the top level."""
        return divided(self.expanded, recomputes)


def compatible(bare: Schedule, windows: Mapping[Window, int]) -> dict[Window, int]:
    """Return the windows without those that cannot be split after the ones before them."""
    ids = [op.id for op in expand(bare).unsplit.operations]
    kept = dict(windows)
    while kept:
        splits = tuple(Split(tuple(ids[i] for i in window.operations), into) for window, into in kept.items())
        try:
            expand(replace(bare, statements=splits, requires=(*bare.requires, SPLIT_FEATURE)))
            break
        except ScheduleError as refusal:
            at = re.match(r"/statements/(\d+)", refusal.where)
            if at is None:
                raise
            del kept[list(kept)[int(at.group(1))]]
    return kept


def tiled_step(bare: Schedule, windows: Mapping[Window, int], cost: str, price: Price | None) -> TiledStep:
    """Return a step with split windows.

    Args:
        bare: The schedule of the step, without a plan.
        windows: The number of tiles of each window.
        cost: Name of the costs.
        price: Adds costs to a graph. None: a tile costs its share of the whole operation, with its workspace.

    Raises:
        ScheduleError: R09x, a window cannot be split.
    """
    ids = [op.id for op in expand(bare).unsplit.operations]
    splits = tuple(Split(tuple(ids[i] for i in window.operations), into) for window, into in windows.items())
    schedule = replace(bare, statements=splits, requires=(*bare.requires, SPLIT_FEATURE))
    costs = TileCosts({}, {}) if price is None else tile_costs(expand(schedule), price, cost)
    expanded = expand(replace(schedule, costs=merged(schedule.costs, costs.ns), tile_workspaces=costs.workspaces))
    return TiledStep(expanded, splits, costs, tile_blocks(expanded))
