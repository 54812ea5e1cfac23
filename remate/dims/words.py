"""Texts why a step cannot be left open in a size: what differs, where, at which sizes, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import CaptureError, DimsError
from .align import Row, RowOrigin, StructuralDifference
from .guards import SizeGuard
from .samples import SizeRange

Sizes = Mapping[str, int]
_LOOP = 3  # operations that the body of a loop has at least, forward and backward


def spelled(sizes: Sizes) -> str:
    """Format sizes: `b=4, t=64`."""
    return ", ".join(f"{name}={number}" for name, number in sizes.items())


def other_structure(
    difference: StructuralDifference, planned: Sizes, other: Sizes, guard: SizeGuard | None
) -> DimsError:
    """Return the error for a size whose step has another structure. guard: the decision of forward that differs, if
    known."""
    message = f"the step at {spelled(other)} is not that at {spelled(planned)}: {difference.what}{place_of(difference)}"
    names = " and ".join(name for name in planned if planned[name] != other[name])
    if guard is not None:
        message += f"; forward decides by its size at {guard.place}: the step planned is that of {guard}"
        hint = f"give {names} a range in which {guard}, or leave it fixed"
    elif any(other[name] == 1 != planned[name] for name in planned):
        hint = f"at size 1 PyTorch copies less: give {names} a range from 2, and plan a file of its own for 1"
    elif loop := unrolled(difference, planned, other):
        message += f"; {loop}"
        hint = (
            f"leave {names} fixed: a loop over it is unrolled while tracing; plan a file for each {names} that you "
            "train with, and give apply all of them"
        )
    else:
        hint = difference.hint or f"leave {names} fixed, or give it a range in which forward does the same"
    return DimsError(message, hint)


def place_of(difference: StructuralDifference) -> str:
    """Return ` (module 'h.0', model.py:12)`, as far as it is known."""
    at = ", ".join(
        part for part in (f"module {difference.module!r}" if difference.module else "", difference.source) if part
    )
    return f" ({at})" if at else ""


def not_captured(sizes: Sizes, what: str, error: CaptureError, forgotten: str = "") -> DimsError:
    """Return the error for a size at which the model cannot be traced. forgotten: inputs that may lack a name for the
    size."""
    hint = "give a range in which the model runs"
    hint = f"{forgotten}: name it there, too, if it is the same; else {hint}" if forgotten else hint
    refusal = DimsError(f"at {spelled(sizes)} {what}", hint)
    refusal.__cause__ = error
    return refusal


def instead(error: DimsError, kept: SizeRange) -> DimsError:
    """Return the error with the range that works."""
    refusal = DimsError(
        error.message, f'write "{kept}", for which the step is the same, or leave {kept.name} fixed', str(kept)
    )
    refusal.__cause__ = error.__cause__
    return refusal


def unrolled(difference: StructuralDifference, planned: Sizes, other: Sizes) -> str:
    """Return `29 operations more for each t` if the number of operations grows in proportion to one size."""
    more, moved = sum(difference.more.values()), [name for name in planned if planned[name] != other[name]]
    if len(moved) == 1 and more:
        each, rest = divmod(more, other[moved[0]] - planned[moved[0]])
        if not rest and each >= _LOOP:
            return f"{each} operations more for each {moved[0]}: forward loops over {moved[0]}"
    return ""


def unfitted(place: RowOrigin, row: Row, sizes: Sequence[Sizes], of: Sequence[str]) -> DimsError:
    """No expression gives the numbers of a place. of: names of the sizes that they depend on."""
    some = "; ".join(f"{number} at {spelled(at)}" for number, at in list(zip(row, sizes, strict=True))[:3])
    where = f" ({place.source})" if place.source else ""
    return DimsError(
        f"{place.what}{where} follows from {' and '.join(of)} in no way that a file can state: {some}",
        f"leave {' or '.join(of)} fixed, or compute it with tensors",
    )


def only_where(guard: SizeGuard, sizes: Sequence[SizeRange]) -> DimsError:
    """The step is valid for a part of the ranges only."""
    names = ", ".join(sorted(guard.dims))
    ranges = ", ".join(f"{r.name} from {r.min} to {r.max}" for r in sizes if r.name in guard.dims)
    return DimsError(
        f"the step holds for {guard} only ({guard.place}), and the request is {ranges}",
        f"give {names} a range in which that holds, or leave it fixed",
    )


def undecided(place: str, names: Sequence[str]) -> DimsError:
    """A decision whose condition is not known."""
    return DimsError(
        f"what forward decides at {place} depends on {' or '.join(names)} in a way that is not understood",
        f"leave {' or '.join(names)} fixed, or decide by tensors (torch.where)",
    )


def still_open(captures: int, place: RowOrigin, of: Sequence[str], sizes: Sizes) -> DimsError:
    """Several expressions remain that differ at some size. of: names of the sizes that they depend on."""
    where = f" ({place.source})" if place.source else ""
    names = " or ".join(of)
    return DimsError(
        f"after {captures} captures {place.what}{where} may still be one of several numbers at {spelled(sizes)}",
        f"give {names} a smaller range, or leave it fixed",
    )
