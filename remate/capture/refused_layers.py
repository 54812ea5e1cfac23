"""Refuses layers of torch that no schedule can contain, before anything is traced."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from remate_runtime.applied import original_of
from remate_runtime.bind import modules_by_path

from ..errors import CaptureError


def refuse_layers(model: nn.Module) -> None:
    """Raise CaptureError for layers that tracing would refuse without their names."""
    for path, module in modules_by_path(model, each_once=True).items():
        if original_of(module) is not module:
            raise CaptureError(
                "it has a schedule of its own, and no schedule runs inside another",
                path,
                hint="replace it by the module to which the schedule was applied, and plan the whole; or plan parts",
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise CaptureError(
                f"{type(module).__name__}(max_norm={module.max_norm}) writes into its weight in forward",
                path,
                hint="renormalise the weight after the optimizer's step instead (torch.renorm), with max_norm=None",
            )
        if any(isinstance(hook, SpectralNorm) for hook in vars(module)["_forward_pre_hooks"].values()):
            raise CaptureError(
                "torch.nn.utils.spectral_norm keeps its weight as a view of a parameter",
                path,
                hint="use torch.nn.utils.parametrizations.spectral_norm, which computes the same",
            )
