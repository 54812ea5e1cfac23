"""Lost efficiency of small products, and costs of tiles."""

from __future__ import annotations

import pytest

from remate.profile.devices import DEVICES
from remate.profile.small_products import lost_efficiency
from remate_runtime.flat_step import Graph, Op, Ref, Value
from remate_runtime.format import TensorType


def product(rows: int, columns: int, depth: int, op: str = "aten.mm") -> tuple[Graph, Op]:
    shapes = ((rows, depth), (depth, columns), (rows, columns))
    values = tuple(Value(f"v{at}", TensorType("f32", shape), "input") for at, shape in enumerate(shapes))
    call = Op("mm", op, (Ref(0), Ref(1)), {}, (0, 1), (2,), False, False, False)
    return Graph(values, (call,), 1, (2,), (), (), (0, 1, 2)), call


def lost(whole: tuple[int, int, int], tile: tuple[int, int, int], device: str, op: str = "aten.mm") -> float:
    return lost_efficiency(*product(*tile, op), product(*whole, op), DEVICES[device])


@pytest.mark.parametrize("device", ["cpu", "h100", "t4"])
def test_fewer_rows_are_never_more_efficient(device: str) -> None:
    whole = 8192, 50304, 768
    factors = [lost(whole, (8192 // into, *whole[1:]), device) for into in (1, 2, 8, 32, 128, 1024)]
    assert factors[0] == 1.0
    assert min(factors) >= 1.0
    assert factors[-1] > 1.5


def test_a_core_packs_matrices() -> None:
    assert lost((4096, 512, 4096), (16, 512, 4096), "cpu") == pytest.approx(2 / (1 + 16 / 4096))
    assert lost((4096, 512, 4096), (4096, 512, 16), "cpu") == pytest.approx(2 / (1 + 16 / 4096))


def test_waves_of_a_gpu() -> None:
    full = 128 * 132, 128, 1024  # a block for every processor
    assert lost(full, (128 * 66, 128, 1024), "h100") == pytest.approx(2)
    assert lost((2 * full[0], *full[1:]), full, "h100") == 1.0


def test_sums_of_few_elements_on_a_gpu() -> None:
    """With enough blocks the ramp is left: 128 elements of each sum."""
    whole = 128 * 132, 128 * 8, 1024
    assert lost(whole, (*whole[:2], 128), "h100") == pytest.approx(2 / (1 + 128 / 1024))


def test_other_operators_lose_nothing() -> None:
    assert lost((64, 64, 64), (1, 64, 64), "h100", "aten.mul.Tensor") == 1.0
