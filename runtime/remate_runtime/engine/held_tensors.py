"""Tensors that backward reads and that other code could change between forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..errors import ExecutionError
from ..operator_calls.overloads import storage_identity

Contents = Callable[[torch.Tensor], Any]  # equal for tensors with the same content
_WHEN = "after backward (optimizer steps too; in backward, each parameter when its own gradient has come)"


class Held(NamedTuple):
    """A tensor that backward reads, in its state when forward ended.

    Attributes:
        storage: Identifies its storage, which keeps its identity where FSDP frees it and gathers it again.
        until: The segment of its last read. None: checked only when backward begins, and freed then, because backward
            frees such tensors one by one.
        content: Its content, in a checked call.
    """

    tensor: torch.Tensor
    version: int
    storage: int
    what: str
    until: int | None
    content: Any = None


def held(tensor: torch.Tensor, what: str, until: int | None, contents: Contents | None) -> Held:
    """Return a tensor in its present state.

    Args:
        tensor: The tensor.
        what: Its name in errors.
        until: As in `Held`.
        contents: Returns the content of a tensor, in a checked call.
    """
    content = None if contents is None else contents(tensor)
    return Held(tensor, _version(tensor), storage_identity(tensor), what, until, content)


def check_unchanged(watched: Sequence[Held], segment: int) -> None:
    """Raise ExecutionError if a tensor was written to, or got other data, that this or a later segment reads."""
    for known in watched:
        if known.until is not None and known.until < segment:
            continue
        if _version(known.tensor) != known.version:
            raise ExecutionError(
                f"{known.what} was modified in place between forward and backward (version "
                f"{_version(known.tensor)}, expected {known.version})\n  modify it {_WHEN}, or give the step a "
                "clone of it"
            )
        if storage_identity(known.tensor) != known.storage:
            raise ExecutionError(
                f"{known.what} got other data between forward and backward (`.data = …`): what is recomputed from it "
                f"is not what forward computed\n  replace it {_WHEN}"
            )


def check_contents(watched: Sequence[Held], contents: Contents) -> None:
    """Raise ExecutionError if the content of a tensor has changed without an increased version."""
    for known in watched:
        if contents(known.tensor) != known.content:
            raise ExecutionError(
                f"{known.what} was written to between forward and backward, by .data or through NumPy, where torch "
                "does not notice: what is recomputed from it is not what forward computed\n  write to it after "
                "backward, or give the step a clone"
            )


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
