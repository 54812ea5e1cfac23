"""The measurement, on cases with known results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from remate.step_measurement.allocator import compare_times, memory_curve, peak_bytes, timed

KIB = 1024


def block(kib: int) -> torch.Tensor:
    return torch.empty(kib * KIB, dtype=torch.uint8)


def test_peak_of_overlapping_blocks():
    def fn() -> None:
        a = block(100)
        b = block(50)
        del a
        c = block(70)
        del b, c

    assert peak_bytes(fn) == 150 * KIB


def test_peak_counts_a_temporary_inside_one_operator():
    x = torch.ones(64 * KIB)

    def fn() -> torch.Tensor:
        return torch.nn.functional.gelu(x + x)  # the sum (256 KiB) and gelu's output are alive together

    assert peak_bytes(fn) == 2 * 256 * KIB


def test_peak_counts_matrix_product_and_gradients():
    weight = torch.ones(128, 64, requires_grad=True)
    x = torch.ones(32, 128)

    def fn() -> None:
        y = x @ weight  # 32·64·4
        y.backward(torch.ones_like(y))  # tangent 32·64·4, gradient of the weight 128·64·4

    assert peak_bytes(fn) == 2 * 32 * 64 * 4 + 128 * 64 * 4
    weight.grad = None


def test_freeing_older_memory_is_not_taken_off():
    older = [block(500)]

    def fn() -> None:
        older.clear()
        block(100)

    assert peak_bytes(fn) == 100 * KIB


def test_an_address_used_again_between_sessions_has_its_own_size():
    """The profiler remembers the size of a block that an earlier session saw and nobody saw freed."""
    kept: list[torch.Tensor] = []

    def first() -> None:
        kept.extend(block(64) for _ in range(50))

    assert peak_bytes(first) == 50 * 64 * KIB
    kept.clear()
    kept.extend(block(64) for _ in range(50))

    def second() -> None:
        kept.clear()
        kept.append(block(10))

    assert peak_bytes(second) == 10 * KIB


def test_nothing_allocated():
    assert peak_bytes(lambda: None) == 0


def test_an_error_inside_is_raised_and_profiling_ends():
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        peak_bytes(fail)
    assert peak_bytes(lambda: block(1)) == KIB


def test_measuring_is_silent(capfd: pytest.CaptureFixture[str]):
    older = [block(3)]
    peak_bytes(lambda: older.clear())
    peak_bytes(lambda: print("said inside"))
    out, err = capfd.readouterr()
    assert out == "said inside\n"
    assert err == ""


@pytest.mark.cuda
def test_peak_on_cuda_is_what_was_requested_for():
    """Requested bytes count even if the allocator returns a larger cached block, so that peaks do not depend on earlier
    runs."""
    assert peak_bytes(lambda: torch.empty(1, device="cuda"), "cuda") == 4
    mebibyte = 1 << 20
    torch.empty(21 * mebibyte, dtype=torch.uint8, device="cuda")
    requested = 20 * mebibyte + mebibyte // 2
    assert peak_bytes(lambda: torch.empty(requested, dtype=torch.uint8, device="cuda"), "cuda") == requested


class Clock:
    now = 0

    def perf_counter_ns(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that moves only on request."""
    result = Clock()
    monkeypatch.setattr("remate.step_measurement.allocator.time", result)
    return result


def test_times_are_compared_in_turns(clock: Clock):
    order: list[str] = []

    def task(name: str, *takes: int):
        def fn() -> None:
            clock.now += takes[order.count(name) % len(takes)]
            order.append(name)

        return fn

    times = compare_times({"a": task("a", 2000, 2000), "b": task("b", 6000, 8000)}, repeats=4)
    assert "".join(order) == "ab" + "abba" * 2
    assert times.median == {"a": 2000, "b": 7000}  # the first call of each warms up and is not counted
    assert times.ratio == {"a": 1.0, "b": 3.5}
    assert times.spread == {"a": 0.0, "b": 0.5}


def test_time_of_one_call(clock: Clock):
    def fn() -> None:
        clock.now += 700

    assert timed(fn) == 700
    assert timed(lambda: None) == 1  # a clock too coarse to see it: nothing takes no time


def test_curve_of_overlapping_blocks():
    def step(backward_start: Callable[[], None]) -> None:
        a = block(100)
        backward_start()
        b = block(50)
        del a, b

    curve = memory_curve(step)
    assert curve.bytes == (0, 100 * KIB, 150 * KIB, 50 * KIB, 0)
    assert curve.times[0] == 0
    assert list(curve.times) == sorted(curve.times)
    assert curve.times[1] <= curve.backward_start <= curve.times[2]


@pytest.mark.cuda
def test_curve_on_cuda_has_the_measured_peak():
    def fn(backward_start: Callable[[], None] = lambda: None) -> None:
        a = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        backward_start()
        b = torch.empty(1 << 21, dtype=torch.uint8, device="cuda")
        del a, b

    curve = memory_curve(fn, "cuda")
    assert max(curve.bytes) == peak_bytes(fn, "cuda") == 3 << 20
    assert curve.backward_start >= 0
