"""Undoes what a run of forward with data changes: contents of tensors, parameters, and objects of the user."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch import nn

from remate_runtime.operator_calls import storage_address
from remate_runtime.self_check import Checksums, Snapshot
from remate_runtime.torch_private import pytree

from . import torch_api
from .recorded import RecordedCall

_STATISTICS = ("running_mean", "running_var")  # batch norms write into them, and most of their schemas do not say so


@contextlib.contextmanager
def changes_undone(call: RecordedCall) -> Generator[None]:
    """Run forward in the `with` block, and restore what it changes. Copies only tensors that it writes into.

    Without memory (tensors of a fake call), nothing has contents to restore.
    """
    held = [*call.model.parameters(), *call.model.buffers(), *_leaves(call.args, call.kwargs)]
    if any(map(torch_api.is_fake, held)):
        yield
        return
    attributes = (value for module in call.model.modules() for value in vars(module).values())
    writes = _Writes(call.model, [*held, *_leaves(*attributes)])
    snapshot = Snapshot(call.model, [*call.args, *call.kwargs.values()], ())
    try:
        with writes:
            yield
    finally:
        writes.undo()
        snapshot.restore(Checksums())


class _Writes(torch_api.TorchDispatchMode):
    """Copies the storage of a tensor of the model before an operator writes into it."""

    def __init__(self, model: nn.Module, held: list[torch.Tensor]) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] (torch declares no types)
        self._held = {storage_address(tensor): tensor for tensor in held if _is_plain(tensor)}
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._data = [(parameter, parameter.data) for parameter in model.parameters() if _is_plain(parameter)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        arguments = func._schema.arguments
        written = [
            a.name for a in arguments if (a.alias_info is not None and a.alias_info.is_write) or a.name in _STATISTICS
        ]
        if written:
            given = {a.name: value for a, value in zip(arguments, args, strict=False)} | kwargs
            for tensor in _leaves([given.get(name) for name in written]):
                self._keep(storage_address(tensor))
        return func(*args, **kwargs)

    def _keep(self, storage: int) -> None:
        if storage in self._held and storage not in self._copies:
            whole = self._held[storage].untyped_storage()
            self._copies[storage] = whole, whole.clone()

    def undo(self) -> None:
        """Restore contents, and parameters whose `.data` forward assigned."""
        for whole, copy in self._copies.values():
            whole.copy_(copy)
        for parameter, data in self._data:
            if storage_address(parameter) != storage_address(data):
                parameter.data = data


def _leaves(*values: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
