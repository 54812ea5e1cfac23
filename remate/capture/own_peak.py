"""The peak of a step as the model runs it itself, for a model that uses torch.utils.checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from remate_runtime.self_check import Snapshot
from remate_runtime.staleness import tensors_of

from .fake_storages import StorageCount
from .torch_api import FakeTensorMode, _pytree, detect_fake_mode


@contextmanager
def _replaced(model: torch.nn.Module, fake: Callable[[Any], Any]) -> Iterator[None]:
    """Replace all parameters and buffers in the `with` block."""
    registered: list[dict[str, Any]] = [
        each for module in model.modules() for each in (module._parameters, module._buffers)
    ]
    saved = [dict(each) for each in registered]
    try:
        for each in registered:
            each.update({name: fake(tensor) for name, tensor in each.items()})
        yield
    finally:
        for each, tensors in zip(registered, saved, strict=True):
            each.clear()
            each.update(tensors)


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
    mode: Any = detect_fake_mode([*model.parameters(), *model.buffers(), *tensors_of((args, kwargs))])
    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
    fakes: dict[int, torch.Tensor] = {}

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in fakes:
            fakes[id(value)] = mode.from_tensor(value.detach()).requires_grad_(value.requires_grad)
        return fakes[id(value)]

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    snapshot = Snapshot(model, (args, kwargs), ())
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with mode:
            given, named = _pytree.tree_map(fake, (tuple(args), dict(kwargs)))
            for tensor in (*model.parameters(), *model.buffers()):
                fake(tensor)
        device = next((tensor.device.type for tensor in fakes.values()), "cpu")
        storages = StorageCount(device, list(fakes.values()))
        # Outside of the fake mode, so that the states of generators are real.
        # Checkpoints run forward again in backward, so that the parameters stay replaced until then.
        with torch.random.fork_rng(devices=devices), _replaced(model, fake), mode, storages:
            results = list(tensors_of(model(*given, **named)))
            outputs = [result for result, wanted in zip(results, differentiated, strict=True) if wanted]
            del results
            seeds = [torch.ones_like(output) for output in outputs]
            storages.leave_out([seed for seed in seeds if seed.numel() > 1])
            torch.autograd.backward(outputs, seeds)  # reentrant checkpoints refuse `autograd.grad`
    except Exception:  # forward may read values, or run code that no fake tensor supports
        return None
    finally:
        snapshot.restore(_NO_CHECKSUMS)
        for parameter, gradient in gradients:  # recurrent layers keep their parameters in lists, too
            parameter.grad = gradient
    return storages.peak
