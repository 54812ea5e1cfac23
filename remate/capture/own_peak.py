"""The peak of a step as the model runs it itself, for a model that uses torch.utils.checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from remate_runtime.self_check import Snapshot
from remate_runtime.staleness import tensors_of

from .fake_call import fake_call, without_memory
from .fake_storages import StorageCount
from .recorded import called


class _NoChecksums:
    """Replaces checksums, because fake tensors have no contents."""

    def of(self, tensor: torch.Tensor) -> None:
        return None


_NO_CHECKSUMS: Any = _NoChecksums()


def own_peak(
    model: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object], differentiated: Sequence[bool]
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
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    snapshot = Snapshot(model, (args, kwargs), ())
    kind = next((tensor.device.type for tensor in tensors_of(([*model.parameters()], args, kwargs))), "cpu")
    try:
        # Checkpoints run forward again in backward, so that the tensors stay replaced until then. Generators are set
        # back outside of the fake mode, so that their states are real.
        generators: Any = torch.random  # torch declares its functions without types
        with generators.fork_rng(devices=devices), fake_call(called(model, args, kwargs), kind) as call:
            storages = StorageCount(
                kind, [*model.parameters(), *model.buffers(), *tensors_of((call.args, call.kwargs))]
            )
            with without_memory(call), storages:
                results = list(tensors_of(model(*call.args, **call.kwargs)))
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
