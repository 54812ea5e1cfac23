"""Two outcomes of one call, the model's own and the schedule's: where they differ, and whether rounding explains it.

Engines that compute eager's bits are compared bit for bit. What differs by no more than `ROUNDING` units in the last
place of the largest element is a sum made in another order, or another kernel: a warning. Where the schedule's forward
runs operators that the model's does not (`silu` for `x * sigmoid(x)`), rounding may be `OTHER_OPERATORS` units. The
engine `compiled` rounds less often than eager; it is held to what sums in another order explain
(`staleness.compare.beyond_reordering`: 1e-3 of the largest element in 32-bit floats, 5e-2 in 16-bit ones), and its
integers and truth values are not compared. Where its operations, executed as eager PyTorch does, give the model's bits,
rounding is measured by the largest result of the step: a mean of normalized values is zero but for rounding.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..staleness.compare import beyond_reordering, coarsest, largest_finite
from .checksum import Checksums
from .outcome import Noted, Outcome
from .snapshot import Changes

ROUNDING = 8
OTHER_OPERATORS = 64  # in 32-bit floats and finer ones
_COARSE = 1e-4


class Tolerance(NamedTuple):
    """How two results may differ.

    Attributes:
        exact: The engine computes eager's bits.
        units: Units in the last place of the largest element, which are rounding.
        largest: Largest absolute value of any result of the step, where the step is known to be the model's.
        dtype: The coarsest type of these results; None: that of the result which is compared.
    """

    exact: bool = True
    units: int = ROUNDING
    largest: float = 0.0
    dtype: torch.dtype | None = None


class Kind(enum.Enum):
    """What a difference is. UNKNOWN: values were not kept, so that it cannot be measured."""

    ROUNDING = "rounding"
    REAL = "real"
    UNKNOWN = "unknown"


class Found(NamedTuple):
    """One difference, in words."""

    text: str
    kind: Kind = Kind.REAL


def differences(
    live: Outcome, made: Outcome, names: Sequence[str], checksums: Checksums, tolerance: Tolerance
) -> Iterator[Found]:
    """How a scheduled forward differs from the model's own.

    Args:
        live: The model's own.
        made: The schedule's.
        names: Of the buffers in the outcomes.
        checksums: Makes checksums.
        tolerance: How they may differ.
    """
    results = _without_left_out(live, made)
    if list(results) != list(made.results):
        one, two = (", ".join(f"output{path}" for path in side) or "nothing" for side in (results, made.results))
        yield Found(f"the model returns {one}; the schedule {two}")
        return
    for path, wanted in results.items():
        yield from _result(f"output{path}", wanted, made.results[path], tolerance)
    for name, wanted, noted in zip(names, live.buffers, made.buffers, strict=True):
        yield from _tensor(f"buffer {name!r}", wanted, noted, tolerance)
    for generator in live.generators.differences(made.generators):
        yield Found(f"the state of a generator of random numbers: {generator}")
    if live.changes is not None:
        yield from _changed(live.changes, checksums, tolerance)


def _without_left_out(live: Outcome, made: Outcome) -> dict[str, Any]:
    """The model's results but for objects that no file can contain (a cache of keys and values): `plan` has warned that
    the schedule returns None in their place, which a ModelOutput leaves out."""
    results = {}
    for path, result in live.results.items():
        if not isinstance(result, type) or made.results.get(path) is not None:
            results[path] = result
        elif path in made.results:
            results[path] = None
    return results


def gradient_differences(
    live: Mapping[str, Noted | None], made: Mapping[str, Noted | None], tolerance: Tolerance
) -> Iterator[Found]:
    """The same of gradients by name. What is zero but for rounding is measured by the largest gradient of all."""
    largest = max(
        (largest_finite(noted.values) for noted in live.values() if noted and noted.values is not None), default=0.0
    )
    for name, wanted in live.items():
        noted, what = made[name], f"gradient of {name!r}"
        if wanted is None or noted is None:
            if wanted is not noted:
                one, two = (each.words if each else "none" for each in (wanted, noted))
                yield Found(f"{what}: the model gives {one}, the schedule {two}")
        else:
            yield from _tensor(what, wanted, noted, tolerance, largest)


def _changed(changes: Changes, checksums: Checksums, tolerance: Tolerance) -> Iterator[Found]:
    for attribute in changes.attributes:
        place = f"attribute {f'{attribute.path}.{attribute.name}'.lstrip('.')!r}"
        now = attribute.holder.get(attribute.name)
        if not isinstance(now, torch.Tensor):
            yield Found(f"{place}: the model sets it to a tensor, the schedule does not")
        elif tolerance.exact and checksums.of(now) != attribute.made:
            yield Found(f"{place}: the model sets it to another tensor than the schedule")
    for tensor in changes.written:
        yield Found(f"the model writes into a tensor of shape {list(tensor.shape)}, which the schedule leaves as it is")


def _result(what: str, live: Any, made: Any, tolerance: Tolerance) -> Iterator[Found]:
    if isinstance(live, Noted) and isinstance(made, Noted):
        yield from _tensor(what, live, made, tolerance)
        if live.requires_grad != made.requires_grad:
            yield Found(
                f"{what}: requires_grad is {live.requires_grad} in the model, {made.requires_grad} in the schedule"
            )
    elif type(live) is not type(made) or (live != made and live == live):
        one, two = (each.words if isinstance(each, Noted) else repr(each)[:80] for each in (live, made))
        yield Found(f"{what}: the model gives {one}, the schedule {two}")


def _tensor(what: str, live: Noted, made: Noted, tolerance: Tolerance, noise: float = 0.0) -> Iterator[Found]:
    if live.checksum != made.checksum and (kind := _judged(live, made, tolerance, noise)) is not None:
        yield Found(f"{what}: the model gives {live.words}, the schedule {made.words}", kind)


def _judged(live: Noted, made: Noted, tolerance: Tolerance, noise: float) -> Kind | None:
    """What a difference is; None where the engine may differ so."""
    if live.checksum.dtype != made.checksum.dtype or live.checksum.shape != made.checksum.shape:
        return Kind.REAL
    one, two = live.values, made.values
    numbers = live.checksum.dtype.is_floating_point or live.checksum.dtype.is_complex
    if not numbers:
        return Kind.REAL if tolerance.exact else None
    if one is None or two is None:
        return Kind.UNKNOWN
    if not tolerance.exact:
        noisy = {"": one, "largest": torch.tensor([max(noise, tolerance.largest)], dtype=torch.float64)}
        far = list(beyond_reordering("", noisy, {"": two}, tolerance.dtype or coarsest([one])))
        return Kind.REAL if far else None
    wide = torch.complex128 if one.is_complex() else torch.float64
    one, two = one.to(wide), two.to(wide)
    same = (one == two) | (one.isnan() & two.isnan())
    distance = (one - two)[~same].abs()
    eps = torch.finfo(live.checksum.dtype).eps
    units = tolerance.units if eps < _COARSE else ROUNDING
    limit = eps * (units * largest_finite(one) + noise)
    return Kind.ROUNDING if bool((distance <= limit).all()) else Kind.REAL
