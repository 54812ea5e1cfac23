"""The results of a forward in a few bytes: outputs as checksums, new values of buffers, attributes, random numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..bind.containers import children
from ..operator_calls.overloads import described
from .checksum import Checksum, Checksums, summary
from .generators import Generators
from .snapshot import Changes

_COMPARED = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class Noted(NamedTuple):
    """A tensor among the results of a forward.

    Attributes:
        checksum: Checksum of its contents.
        requires_grad: Whether it requires a gradient.
        words: A short description.
        values: The tensor itself, if requested.
    """

    checksum: Checksum
    requires_grad: bool
    words: str
    values: torch.Tensor | None = None


class ForwardOutcome(NamedTuple):
    """The results of a forward.

    Attributes:
        results: Outputs by path.
        buffers: New values of buffers.
        attributes: Numbers, texts and None in attributes, by path.
        generators: Final states of generators.
        changes: Other changes.
    """

    results: dict[str, Any]
    buffers: list[Noted]
    attributes: dict[str, Any]
    generators: Generators
    changes: Changes | None = None


def leaves(tree: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, leaf) of nested containers and records; a path is like `.loss` or `[0]`."""
    inner = children(tree)
    if inner is None:
        yield path, tree
        return
    kind, parts = inner
    for key, part in parts.items():
        yield from leaves(part, f"{path}[{key}]" if kind in ("tuple", "list") else f"{path}.{key}")


def tensors_in(tree: object) -> list[torch.Tensor]:
    """Return the tensors among the leaves, in order."""
    return [leaf for _, leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]


def noted(tensor: torch.Tensor, checksums: Checksums, keep: bool) -> Noted:
    """Record the current state of a tensor. keep: also its values."""
    if not keep:
        return Noted(checksums.of(tensor), tensor.requires_grad, described(tensor))
    return Noted(checksums.of(tensor), tensor.requires_grad, summary(tensor), tensor.detach().clone())


def outcome_of(
    outputs: object,
    updated: Sequence[torch.Tensor],
    attributes: Mapping[str, object],
    checksums: Checksums,
    keep: bool,
) -> ForwardOutcome:
    """Return the results of a forward that has just run.

    Args:
        outputs: The outputs.
        updated: The tensors that the step writes to.
        attributes: Attributes that the schedule sets to numbers, texts or None, by path.
        checksums: Computes checksums.
        keep: Keep values, so that differences can be measured.
    """
    results: dict[str, Any] = {}
    for path, leaf in leaves(outputs):
        if isinstance(leaf, torch.Tensor):
            results[path] = noted(leaf, checksums, keep)
        elif isinstance(leaf, _COMPARED):
            results[path] = leaf
        else:
            results[path] = type(leaf)
    buffers = [noted(tensor, checksums, keep) for tensor in updated]
    plain = {path: leaf for name, value in attributes.items() for path, leaf in leaves(value, name)}
    return ForwardOutcome(results, buffers, plain, Generators.now())
