"""Matches calls with the recorded call. Keys may have another order if forward does not depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..bind.inputs import Inputs
from ..bind.order import OrderError, order_of
from ..staleness.same_forward import same_forward
from .identity import Identity

_ORDERS = 64  # most orders to remember


class RecordedInputs:
    """Matches calls with the recorded one.

    Attributes:
        names: Input leaves in the order in which `flatten` returns their tensors.
    """

    def __init__(self, tree: Mapping[str, object], model: nn.Module, identity: Identity) -> None:
        """Prepare for the calls of a size.

        Args:
            tree: The recorded inputs.
            model: The live model.
            identity: The identities of the recorded call.
        """
        self._model = model
        self._ordered, self._any = (Inputs(tree, model.forward, ordered) for ordered in (True, False))
        self.names = self._ordered.names
        self._identity = identity
        self._refused: dict[Any, str] = {}
        self._taken: set[Any] = set()

    def flatten(self, args: tuple[object, ...], kwargs: dict[str, Any], device: torch.device) -> list[torch.Tensor]:
        """Return the tensors of a live call.

        If keys of mappings or of `**kwargs` have another order, forward runs once without data to check whether it runs
        the same operations. The same holds if a tensor is passed several times.

        Raises:
            BindError: The call differs from the recorded one.
        """
        tensors = self._flat(args, kwargs, device)
        if len(tensors) > 1:
            self._identity.check(args, kwargs, device)
        return tensors

    def _flat(self, args: tuple[object, ...], kwargs: dict[str, Any], device: torch.device) -> list[torch.Tensor]:
        try:
            return self._ordered.flatten(args, kwargs, device)
        except OrderError as error:
            order = order_of((args, kwargs))
            if order in self._refused:
                raise OrderError(self._refused[order]) from None
            tensors = self._any.flatten(args, kwargs, device)
            if order not in self._taken and not same_forward(
                self._model, (args, kwargs), self._any.as_planned(args, kwargs)
            ):
                if len(self._refused) < _ORDERS:
                    self._refused[order] = str(error)
                raise
            if len(self._taken) < _ORDERS:
                self._taken.add(order)
            return tensors
