"""The peak of a step as the model runs it itself, for a model that uses torch.utils.checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.func import functional_call

from remate_runtime.self_check import Snapshot
from remate_runtime.staleness import tensors_of

from .fake_storages import StorageCount
from .torch_api import FakeTensorMode, _pytree, detect_fake_mode


class _NoChecksums:
    """Stands in for checksums, because fake tensors have no contents."""

    def of(self, tensor: torch.Tensor) -> None:
        return None


_NO_CHECKSUMS: Any = _NoChecksums()


def own_peak(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], differentiated: Sequence[bool]
) -> int | None:
    """Return the peak of forward and backward in bytes, without workspaces of kernels.

    The step runs on fake tensors, so it takes no memory and changes no tensor. Attributes, globals and containers that
    forward changes are set back.

    Args:
        model: The model. Its tensors may be fake.
        args: Arguments of forward.
        kwargs: Keyword arguments of forward.
        differentiated: For each output tensor, whether it receives a gradient.

    Returns:
        The peak; None if forward does not run on fake tensors.
    """
    named = {
        name: tensor
        for tensors in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
        for name, tensor in tensors
    }
    mode: Any = detect_fake_mode([*named.values(), *tensors_of((args, kwargs))])
    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
    fakes: dict[int, torch.Tensor] = {}

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in fakes:
            fakes[id(value)] = mode.from_tensor(value.detach()).requires_grad_(value.requires_grad)
        return fakes[id(value)]

    snapshot = Snapshot(model, (args, kwargs), ())
    try:
        with mode:
            given = _pytree.tree_map(fake, (tuple(args), dict(kwargs)))
            state = {name: fake(tensor) for name, tensor in named.items()}
        device = next((tensor.device.type for tensor in fakes.values()), "cpu")
        storages = StorageCount(device, list(fakes.values()))
        with mode, storages, torch.random.fork_rng(devices=()):
            results = list(tensors_of(functional_call(model, state, *given)))
            outputs = [result for result, wanted in zip(results, differentiated, strict=True) if wanted]
            del results
            seeds = [torch.ones_like(output) for output in outputs]
            storages.leave_out([seed for seed in seeds if seed.numel() > 1])
            torch.autograd.backward(outputs, seeds)  # reentrant checkpoints refuse `autograd.grad`
    except Exception:  # forward may read values, or run code that no fake tensor supports
        return None
    finally:
        snapshot.restore(_NO_CHECKSUMS)
    return storages.peak
