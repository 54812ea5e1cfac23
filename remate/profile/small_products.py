"""Lost efficiency of matrix products with few rows, for the tiles of a split. Does not require torch.

The roofline model assumes well-shaped products. A tile has fewer rows, or sums over fewer rows, and reaches less:

- A GPU computes blocks of 128 by 128 elements, and divides sums longer than 1,024 between several of them. Blocks run
  in waves on its processors, and the last wave may be nearly empty. Each block fills its pipeline for the first 128
  elements of a sum.
- A CPU core packs both matrices into its caches, which takes as long as `_CPU_RAMP` further rows, and as many further
  elements of each sum.

Only the ratio to the whole product counts, so that a split has costs in proportion to those of the step.
"""

from __future__ import annotations

from math import ceil, prod

from remate_runtime.flat_step import Graph, Op, Ref

from .devices import Device

_BLOCK, _DEPTH = 128, 1024  # elements of a GPU's block, and of a sum that is not divided
_GPU_RAMP, _CPU_RAMP = 128, 16
_FACTORS = {"aten.mm": 0, "aten.addmm": 1}  # position of the first factor


def lost_efficiency(graph: Graph, tile: Op, whole: tuple[Graph, Op], device: Device) -> float:
    """Return the factor by which a tile takes longer than its share of the whole operation, at least 1.

    Args:
        graph: The split step.
        tile: An operation of it.
        whole: The step before the split, and the operation that the tile is a part of.
        device: The device.
    """
    sizes, before = _sizes(graph, tile), _sizes(*whole)
    if sizes is None or before is None:
        return 1.0
    return max(1.0, _time_per_element(sizes, device) / _time_per_element(before, device))


def _sizes(graph: Graph, op: Op) -> tuple[int, int, int] | None:
    """Return rows, columns and length of sums of a product; None for other operators."""
    first = _FACTORS.get(op.op)
    if first is None:
        return None
    left, right = op.args[first], op.args[first + 1]
    if not isinstance(left, Ref) or not isinstance(right, Ref):
        return None
    a, b = graph.values[left.value].type.shape, graph.values[right.value].type.shape
    return (a[0], b[1], a[1]) if len(a) == len(b) == 2 and prod(a) * prod(b) else None


def _time_per_element(sizes: tuple[int, int, int], device: Device) -> float:
    """Return time relative to the arithmetic of the product."""
    rows, columns, depth = sizes
    if device.kind == "cpu":
        return (1 + _CPU_RAMP / rows) * (1 + _CPU_RAMP / depth)
    blocks = ceil(rows / _BLOCK) * ceil(columns / _BLOCK) * max(1, depth // _DEPTH)
    waves = ceil(blocks / device.processors)
    filled = rows / (ceil(rows / _BLOCK) * _BLOCK) * columns / (ceil(columns / _BLOCK) * _BLOCK)
    return waves * device.processors / blocks * (1 + _GPU_RAMP / depth) / filled
