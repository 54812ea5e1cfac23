"""Compares the model's own results of a call with the schedule's, and decides whether rounding explains a difference.

Engines that reproduce eager are compared bitwise. A difference of at most `ROUNDING` units in the last place of the
largest element comes from a different order of sums or a different kernel, and leads to a warning. If the schedule's
forward runs other operators than the model's (`silu` for `x * sigmoid(x)`), `OTHER_OPERATORS` units are allowed.

Engine `compiled` rounds less often than eager. Its limit is what a different order of sums explains
(`staleness.compare.beyond_reordering`: 1e-3 of the largest element in 32-bit floats, 5e-2 in 16-bit floats), and its
integers and booleans are not compared. If its operations, executed as eager PyTorch does, reproduce the model bitwise,
the largest result of the step is the scale of rounding, because a mean of normalized values is zero except for
rounding.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..staleness.compare import beyond_reordering, coarsest, largest_finite
from .checksum import Checksums
from .outcome import ForwardOutcome, Noted
from .snapshot import Changes

ROUNDING = 8
OTHER_OPERATORS = 64  # in 32-bit floats and more precise types
_COARSE = 1e-4


class Tolerance(NamedTuple):
    """The allowed difference of two results.

    Attributes:
        exact: The engine reproduces eager bitwise.
        units: Units in the last place of the largest element that count as rounding.
        largest: Largest absolute value of any result of the step, if the step is known to be the model's.
        dtype: The least precise type of these results. None: the type of the compared result.
    """

    exact: bool = True
    units: int = ROUNDING
    largest: float = 0.0
    dtype: torch.dtype | None = None


class Kind(enum.Enum):
    """The kind of a difference. UNKNOWN: values were not kept, so that it cannot be measured."""

    ROUNDING = "rounding"
    REAL = "real"
    UNKNOWN = "unknown"


class Difference(NamedTuple):
    """A difference as text."""

    text: str
    kind: Kind = Kind.REAL


def differences(
    live: ForwardOutcome, scheduled: ForwardOutcome, names: Sequence[str], checksums: Checksums, tolerance: Tolerance
) -> Iterator[Difference]:
    """Yield the differences between a scheduled forward and the model's own.

    Args:
        live: Results of the model.
        scheduled: Results of the schedule.
        names: Names of the buffers.
        checksums: Computes checksums.
        tolerance: The allowed difference.
    """
    results = _without_left_out(live, scheduled)
    if list(results) != list(scheduled.results):
        expected, actual = (
            ", ".join(f"output{path}" for path in side) or "nothing" for side in (results, scheduled.results)
        )
        yield Difference(f"the model returns {expected}; the schedule {actual}")
        return
    for path, wanted in results.items():
        yield from _result(f"output{path}", wanted, scheduled.results[path], tolerance)
    for name, wanted, noted in zip(names, live.buffers, scheduled.buffers, strict=True):
        yield from _tensor(f"buffer {name!r}", wanted, noted, tolerance)
    for path in {**live.attributes, **scheduled.attributes}:
        wanted, got = live.attributes.get(path, ()), scheduled.attributes.get(path, ())  # () where there is none
        yield from _result(f"attribute {path!r}", wanted, got, tolerance)
    for generator in live.generators.differences(scheduled.generators):
        yield Difference(f"the state of a generator of random numbers: {generator}")
    if live.changes is not None:
        yield from _changed(live.changes, checksums, tolerance)


def without_frozen(live: ForwardOutcome, scheduled: ForwardOutcome) -> ForwardOutcome:
    """Return the model's results as if outputs that follow from frozen parameters alone required gradients, as those of
    a schedule do, whose backward gives them none."""
    results: dict[str, Any] = {}
    for path, result in live.results.items():
        other = scheduled.results.get(path)
        requires = isinstance(other, Noted) and other.requires_grad
        results[path] = result._replace(requires_grad=True) if isinstance(result, Noted) and requires else result
    return live._replace(results=results)


def _without_left_out(live: ForwardOutcome, scheduled: ForwardOutcome) -> dict[str, Any]:
    """Return the model's results without objects that no file can contain (a cache of keys and values).

    The schedule returns None in their place, as `plan` warned, and a ModelOutput leaves None out.
    """
    results: dict[str, Any] = {}
    for path, result in live.results.items():
        if not isinstance(result, type) or scheduled.results.get(path) is not None:
            results[path] = result
        elif path in scheduled.results:
            results[path] = None
    return results


def gradient_differences(
    live: Mapping[str, Noted | None], scheduled: Mapping[str, Noted | None], tolerance: Tolerance
) -> Iterator[Difference]:
    """Yield differences of gradients by name. The largest of all gradients is the scale of rounding."""
    largest = max(
        (largest_finite(noted.values) for noted in live.values() if noted and noted.values is not None), default=0.0
    )
    for name, wanted in live.items():
        noted, what = scheduled[name], f"gradient of {name!r}"
        if wanted is None or noted is None:
            if wanted is not noted:
                expected, actual = (each.words if each else "none" for each in (wanted, noted))
                yield Difference(f"{what}: the model gives {expected}, the schedule {actual}")
        else:
            yield from _tensor(what, wanted, noted, tolerance, largest)


def _changed(changes: Changes, checksums: Checksums, tolerance: Tolerance) -> Iterator[Difference]:
    for attribute in changes.attributes:
        place = f"attribute {f'{attribute.path}.{attribute.name}'.lstrip('.')!r}"
        now = attribute.holder.get(attribute.name)
        if not isinstance(now, torch.Tensor):
            yield Difference(f"{place}: the model sets it to a tensor, the schedule does not")
        elif tolerance.exact and checksums.of(now) != attribute.assigned:
            yield Difference(f"{place}: the model sets it to another tensor than the schedule")
    for tensor in changes.written:
        yield Difference(
            f"the model writes into a tensor of shape {list(tensor.shape)}, which the schedule leaves as it is"
        )


def _result(what: str, live: object, scheduled: object, tolerance: Tolerance) -> Iterator[Difference]:
    if isinstance(live, Noted) and isinstance(scheduled, Noted):
        yield from _tensor(what, live, scheduled, tolerance)
        if live.requires_grad != scheduled.requires_grad:
            yield Difference(
                f"{what}: requires_grad is {live.requires_grad} in the model, {scheduled.requires_grad} in the schedule"
            )
    elif type(live) is not type(scheduled) or (live != scheduled and live == live):
        expected, actual = (each.words if isinstance(each, Noted) else repr(each)[:80] for each in (live, scheduled))
        yield Difference(f"{what}: the model gives {expected}, the schedule {actual}")


def _tensor(what: str, live: Noted, scheduled: Noted, tolerance: Tolerance, noise: float = 0.0) -> Iterator[Difference]:
    if live.checksum != scheduled.checksum and (kind := _judged(live, scheduled, tolerance, noise)) is not None:
        yield Difference(f"{what}: the model gives {live.words}, the schedule {scheduled.words}", kind)


def _judged(live: Noted, scheduled: Noted, tolerance: Tolerance, noise: float) -> Kind | None:
    """Return the kind of a difference; None if the engine may differ by it."""
    if live.checksum.dtype != scheduled.checksum.dtype or live.checksum.shape != scheduled.checksum.shape:
        return Kind.REAL
    expected, actual = live.values, scheduled.values
    numbers = live.checksum.dtype.is_floating_point or live.checksum.dtype.is_complex
    if not numbers:
        return Kind.REAL if tolerance.exact else None
    if expected is None or actual is None:
        return Kind.UNKNOWN
    if not tolerance.exact:
        noisy = {"": expected, "largest": torch.tensor([max(noise, tolerance.largest)], dtype=torch.float64)}
        far = list(beyond_reordering("", noisy, {"": actual}, tolerance.dtype or coarsest([expected])))
        return Kind.REAL if far else None
    wide = torch.complex128 if expected.is_complex() else torch.float64
    expected, actual = expected.to(wide), actual.to(wide)
    same = (expected == actual) | (expected.isnan() & actual.isnan())
    distance = (expected - actual)[~same].abs()
    eps = torch.finfo(live.checksum.dtype).eps
    units = tolerance.units if eps < _COARSE else ROUNDING
    limit = eps * (units * largest_finite(expected) + noise)
    return Kind.ROUNDING if bool((distance <= limit).all()) else Kind.REAL
