"""What a forward gave, in a few bytes: its results as checksums, new values of buffers, attributes, random numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ..bind.containers import children
from ..operator_calls.overloads import described
from .checksum import Checksum, Checksums, summary
from .generators import Generators
from .snapshot import Changes

_COMPARED = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class Noted(NamedTuple):
    """One tensor that a forward gave.

    Attributes:
        checksum: Of its contents.
        requires_grad: Whether it has a gradient.
        words: The tensor in a few words.
        values: The tensor itself, where it was requested.
    """

    checksum: Checksum
    requires_grad: bool
    words: str
    values: torch.Tensor | None = None


class Outcome(NamedTuple):
    """What a forward left: `results` by where they stand, `buffers`, where generators ended, and what else it
    changed."""

    results: dict[str, Any]
    buffers: list[Noted]
    generators: Generators
    changes: Changes | None = None


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested containers and records, each with where it is: `.loss`, `[0]`."""
    inner = children(tree)
    if inner is None:
        yield path, tree
        return
    kind, parts = inner
    for key, part in parts.items():
        yield from leaves(part, f"{path}[{key}]" if kind in ("tuple", "list") else f"{path}.{key}")


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors among the leaves, in order."""
    return [leaf for _, leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]


def noted(tensor: torch.Tensor, checksums: Checksums, keep: bool) -> Noted:
    """A tensor as it is now. keep: its values, too."""
    if not keep:
        return Noted(checksums.of(tensor), tensor.requires_grad, described(tensor))
    return Noted(checksums.of(tensor), tensor.requires_grad, summary(tensor), tensor.detach().clone())


def outcome_of(
    made: Any,
    updated: Sequence[torch.Tensor],
    checksums: Checksums,
    keep: bool,
) -> Outcome:
    """What a forward that has just run left.

    Args:
        made: What it returned.
        updated: The tensors that the step writes to.
        checksums: Makes checksums.
        keep: Keep values, too, so that differences can be measured.
    """
    results: dict[str, Any] = {}
    for path, leaf in leaves(made):
        if isinstance(leaf, torch.Tensor):
            results[path] = noted(leaf, checksums, keep)
        elif isinstance(leaf, _COMPARED):
            results[path] = leaf
        else:
            results[path] = type(leaf)
    buffers = [noted(tensor, checksums, keep) for tensor in updated]
    return Outcome(results, buffers, Generators.now())
