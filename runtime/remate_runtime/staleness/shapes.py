"""The shapes of what a model returns for a call: forward runs on tensors without data."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..bind.containers import mapped
from ..errors import BindError
from ..torch_private.fake_tensors import FakeCopyMode, FakeTensorMode, quiet_meta_failures


def returned(model: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
    """Return the result of `model.forward(*args, **kwargs)` with tensors without data. Nothing is computed or changed.

    Raises:
        BindError: Forward reads the values of tensors.
    """
    fake = FakeTensorMode()

    def without_data(leaf: object) -> Any:
        return fake.from_tensor(leaf, static_shapes=True) if isinstance(leaf, torch.Tensor) else leaf

    try:
        with FakeCopyMode(fake):
            empty = copy.deepcopy(model)
        given = mapped(tuple(args), without_data), mapped(dict(kwargs), without_data)
        with fake, torch.no_grad(), quiet_meta_failures():
            return empty.forward(*given[0], **given[1])
    except Exception as error:
        raise BindError(
            f"which shapes the model returns cannot be reported without running it: {type(error).__name__}: {error}"
            "\n  plan for a range of sizes (dims=), or for this size, too"
        ) from error
