"""Packing: never two at one place, never below the load, on tiny instances as low as can be; found from what the linker
derives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest
from msgspec.structs import replace
from torch import nn

from remate_runtime.addresses import Buffer, Packing, buffers_of, load, pack, reserve
from remate_runtime.addresses.buffers import overlaps
from remate_runtime.addresses.canonical import CanonicalSearch
from remate_runtime.addresses.greedy import by_lifetime, by_size, in_time_order
from remate_runtime.flat_step import expand
from remate_runtime.format import GRADIENTS
from remate_runtime.format import load as load_schedule
from remate_runtime.link import link, simulate
from tests.runtime.small import Mlp, data, seeded
from tests.runtime.stepping import everything, just_in_time, no_recomputes, schedule_of

CORPUS = Path(__file__).parents[2] / "schema" / "corpus" / "valid"
# Every order that is tried without search takes 22 or more; the load is 19.
HARD = [(5, 6, 9), (0, 3, 4), (3, 5, 9), (2, 5, 3), (4, 6, 2), (2, 4, 6), (2, 3, 6)]


def buffers(*given: tuple[int, int, int]) -> list[Buffer]:
    return [Buffer(*item) for item in given]


def random_buffers(seed: int, count: int, largest: int = 9) -> list[Buffer]:
    rng = random.Random(seed)
    collected = []
    for _ in range(count):
        first = rng.randrange(count)
        collected.append(Buffer(first, first + rng.randint(1, max(1, count // 2)), rng.randint(1, largest)))
    return collected


def tiled(seed: int) -> list[Buffer]:
    """A block of 60 bytes over 24 moments, cut into pieces: it packs with no byte to spare anywhere."""
    rng = random.Random(seed)
    pieces = [(0, 24, 60)]
    for _ in range(18):
        first, end, nbytes = pieces.pop(rng.randrange(len(pieces)))
        across = end - first > 1 and (nbytes == 1 or rng.random() < 0.5)
        if across or nbytes > 1:
            at = rng.randrange(first + 1, end) if across else rng.randrange(1, nbytes)
            pieces += (
                [(first, at, nbytes), (at, end, nbytes)] if across else [(first, end, at), (first, end, nbytes - at)]
            )
        else:
            pieces.append((first, end, nbytes))
    rng.shuffle(pieces)
    return buffers(*pieces)


def height(given: Sequence[Buffer], addresses: Sequence[int]) -> int:
    """Of addresses that are legal, which is checked pair by pair."""
    assert len(addresses) == len(given)
    assert all(address >= 0 for address in addresses)
    for i, item in enumerate(given):
        for j in range(i):
            other = given[j]
            if item.first < other.end and other.first < item.end:
                apart = addresses[i] + item.nbytes <= addresses[j] or addresses[j] + other.nbytes <= addresses[i]
                assert apart, (item, addresses[i], other, addresses[j])
    return max((a + b.nbytes for a, b in zip(addresses, given, strict=True)), default=0)


def lowest(given: Sequence[Buffer]) -> int:
    """By every order of placing each buffer on top of those before it: one of them gives the lowest packing."""
    best = sum(b.nbytes for b in given)
    for order in permutations(given):
        placed: list[tuple[Buffer, int]] = []
        for item in order:
            below = [a + b.nbytes for b, a in placed if b.first < item.end and item.first < b.end]
            placed.append((item, max(below, default=0)))
        best = min(best, max(b.nbytes + a for b, a in placed))
    return best


@pytest.mark.parametrize("count", [3, 12, 40])
@pytest.mark.parametrize("seed", range(8))
def test_legal_and_not_below_the_load(seed: int, count: int) -> None:
    given = random_buffers(seed, count)
    result = pack(given, effort=200_000)
    assert result.load == max(sum(b.nbytes for b in given if b.first <= t < b.end) for t in range(2 * count))
    assert result.height == height(given, result.addresses) >= result.load
    assert pack(given, effort=200_000) == result


@pytest.mark.parametrize("seed", range(25))
def test_tiny_ones_are_as_low_as_can_be(seed: int) -> None:
    """The search on its own, too: it loses no solution."""
    given = random_buffers(seed, 6)
    best = lowest(given)
    assert pack(given).height == best
    addresses = CanonicalSearch(given, overlaps(given, 100) or [[] for _ in given], 10_000_000).within(best, 10_000_000)
    assert addresses is not None
    assert height(given, addresses) == best


@pytest.mark.parametrize("seed", range(8))
def test_each_greedy_order_is_legal(seed: int) -> None:
    given = random_buffers(seed, 30)
    beside = overlaps(given, 10_000)
    assert beside is not None
    for addresses in (in_time_order(given), by_size(given, beside), by_lifetime(given, beside)):
        assert height(given, addresses) >= load(given)


def test_search_finds_what_no_order_does() -> None:
    given = buffers(*HARD)
    beside = overlaps(given, 100)
    assert beside is not None
    orders = (in_time_order(given), by_size(given, beside), by_lifetime(given, beside))
    assert min(height(given, addresses) for addresses in orders) > load(given)
    result = pack(given)
    assert height(given, result.addresses) == result.height == load(given)
    assert pack(given, effort=0).height > load(given)


@pytest.mark.parametrize("seed", range(12))
def test_search_finds_what_has_no_byte_to_spare(seed: int) -> None:
    given = tiled(seed)
    addresses = CanonicalSearch(given, overlaps(given, 1000) or [], 10_000_000).within(60, 10_000_000)
    assert addresses is not None
    assert height(given, addresses) == 60


def test_search_below_the_load_ends_at_once() -> None:
    given = buffers(*HARD)
    search = CanonicalSearch(given, overlaps(given, 100) or [], 1000)
    assert search.within(load(given) - 1, 1000) is None
    assert search.left == 1000


def test_lifetimes_end_before_they_are_reused() -> None:
    assert in_time_order(buffers((0, 1, 8), (1, 2, 8), (2, 3, 8))) == [0, 0, 0]


def test_nothing_to_pack() -> None:
    assert pack([]) == Packing((), 0, 0, 0)
    assert pack(buffers((0, 5, 0), (3, 3, 7), (1, 2, 4))) == Packing((0, 0, 0), 4, 4, 0)


@pytest.mark.slow
def test_deeper_than_pythons_stack() -> None:
    """1,500 buffers that are all held at once, and one order of them fits as well as another."""
    given = [Buffer(0, 2 + i % 3, 1 + i % 7) for i in range(1500)]
    beside = overlaps(given, 2_000_000)
    assert beside is not None
    addresses = CanonicalSearch(given, beside, 10**9).within(load(given), 10**9)
    assert addresses is not None
    assert max(a + b.nbytes for a, b in zip(addresses, given, strict=True)) == load(given)


@pytest.mark.quick("Identity-just_in_time")
@pytest.mark.parametrize("recomputes", [no_recomputes, everything, just_in_time])
@pytest.mark.parametrize("between", [nn.Identity, nn.Dropout])
def test_load_of_a_step_is_its_peak(recomputes, between) -> None:
    step = expand(schedule_of(seeded(nn.Sequential(Mlp(), between())), (data(4, 8),), recomputes=recomputes))
    operations = tuple(replace(op, workspace=64 * (at % 5) ** 4) for at, op in enumerate(step.graph.operations))
    linked = link(replace(step.graph, operations=operations), step.recomputes)
    given = buffers_of(linked)
    result = pack(given)
    assert result.load == simulate(linked).peak
    assert result.height == height(given, result.addresses)


@pytest.mark.parametrize("kind", GRADIENTS)
def test_delivered_gradients_make_room_for_others(kind: str) -> None:
    step = expand(load_schedule(f"{CORPUS}/gradients-{kind}.json"))
    linked = link(step.graph, step.recomputes)
    assert pack(buffers_of(linked)).load == simulate(linked).peak
    assert (simulate(linked).peak < simulate(linked, "retained").peak) == (kind != "retained")


@pytest.mark.parametrize("kind", GRADIENTS)
def test_what_fsdp2_uses_has_addresses(kind: str) -> None:
    step = expand(load_schedule(f"{CORPUS}/sharded.json"))
    linked = link(replace(step.graph, delivered=kind), step.recomputes)
    whole = link(replace(step.graph, delivered=kind, sharded=None), step.recomputes)
    assert simulate(linked).peak >= pack(buffers_of(linked)).load > simulate(whole).peak
    assert reserve(buffers_of(linked)).allocated > reserve(buffers_of(whole)).allocated
