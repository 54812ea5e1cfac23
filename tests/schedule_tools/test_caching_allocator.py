"""Reserved memory of torch's allocator, computed by hand: rounding, segments, best fit, splitting, merging, expandable
segments."""

from __future__ import annotations

import random

import pytest

from remate_runtime.addresses import Buffer, Reservation, load, reserve

KIB, MIB = 1 << 10, 1 << 20


def held(*sizes: int) -> list[Buffer]:
    """Buffers that are all live at the same time, allocated in order."""
    return [Buffer(at, len(sizes), nbytes) for at, nbytes in enumerate(sizes)]


@pytest.mark.parametrize(
    ("nbytes", "reserved", "pages"),
    [
        (1, 2 * MIB, 2 * MIB),
        (MIB, 2 * MIB, 2 * MIB),
        (MIB + 512, 20 * MIB, 20 * MIB),
        (10 * MIB - 512, 20 * MIB, 20 * MIB),
        (10 * MIB, 10 * MIB, 20 * MIB),
        (11 * MIB, 12 * MIB, 20 * MIB),
        (21 * MIB, 22 * MIB, 40 * MIB),
    ],
)
def test_segment_of_one_request(nbytes: int, reserved: int, pages: int) -> None:
    assert reserve(held(nbytes)).reserved == reserved
    assert reserve(held(nbytes), expandable=True).reserved == pages


def test_requests_are_rounded_up_to_512_bytes() -> None:
    assert reserve(held(1, 513)).allocated == 512 + 1024


def test_small_segments_are_split_to_the_last_512_bytes() -> None:
    assert reserve(held(*[512] * 4096)) == Reservation(2 * MIB, 2 * MIB)
    assert reserve(held(*[512] * 4097)).reserved == 4 * MIB


def test_large_blocks_are_split_if_more_than_a_mebibyte_is_left() -> None:
    """12 MiB contain 11. The rest is not a block of its own, and counts as allocated."""
    assert reserve(held(11 * MIB)) == Reservation(12 * MIB, 12 * MIB)
    assert reserve(held(20 * MIB - 512)).allocated == 20 * MIB
    assert reserve(held(20 * MIB - 512), expandable=True).allocated == 20 * MIB - 512
    assert reserve(held(11 * MIB, MIB)) == Reservation(14 * MIB, 13 * MIB)
    assert reserve(held(11 * MIB - 512, MIB + 512)) == Reservation(12 * MIB, 12 * MIB)
    assert reserve(held(9 * MIB, 9 * MIB, 2 * MIB)) == Reservation(20 * MIB, 20 * MIB)


def test_the_smallest_block_that_is_large_enough() -> None:
    """14 reuses the block of 14 and 12 that of 12, although the larger one was freed first."""
    buffers = [Buffer(0, 2, 14 * MIB), Buffer(1, 3, 12 * MIB), Buffer(4, 6, 12 * MIB), Buffer(5, 6, 14 * MIB)]
    assert reserve(buffers).reserved == 26 * MIB


def test_segments_do_not_become_one() -> None:
    """Two free segments of 10 MiB cannot serve 12. A segment that grew can."""
    buffers = [Buffer(0, 2, 10 * MIB), Buffer(1, 2, 10 * MIB), Buffer(3, 4, 12 * MIB)]
    assert reserve(buffers).reserved == 32 * MIB
    assert reserve(buffers, expandable=True).reserved == 20 * MIB


def test_free_blocks_of_a_segment_become_one() -> None:
    """Blocks merge with the rest of the segment in either order of frees."""
    for first, second in ((2, 3), (3, 2)):
        buffers = [Buffer(0, first, 6 * MIB), Buffer(1, second, 6 * MIB), Buffer(4, 5, 9 * MIB), Buffer(4, 5, 9 * MIB)]
        assert reserve(buffers).reserved == 20 * MIB


def test_a_segment_grows_by_what_its_free_end_lacks() -> None:
    assert reserve(held(15 * MIB, 25 * MIB), expandable=True).reserved == 40 * MIB


def test_the_pools_share_nothing() -> None:
    assert reserve([Buffer(0, 1, 2 * MIB), Buffer(2, 3, KIB)]).reserved == 22 * MIB


def test_later_steps_meet_what_the_first_has_left() -> None:
    """First, 6 and 10 share a segment of 20 and 14 has its own. Then 6 is placed in that of 14, and 14 needs a new one."""
    buffers = [Buffer(0, 1, 6 * MIB), Buffer(0, 1, 10 * MIB), Buffer(0, 1, 14 * MIB)]
    assert reserve(buffers).reserved == (20 + 14 + 14) * MIB


def test_nothing() -> None:
    assert reserve([]) == Reservation(0, 0)


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_never_below_what_is_held(seed: int, expandable: bool) -> None:
    rng = random.Random(seed)
    collected = []
    for _ in range(80):
        first = rng.randrange(50)
        collected.append(
            Buffer(first, first + rng.randint(1, 30), rng.choice((700, 300 * KIB, 3 * MIB, 11 * MIB + 512)))
        )
    result = reserve(collected, expandable)
    assert load(collected) <= result.allocated <= result.reserved
    assert result == reserve(collected, expandable)
