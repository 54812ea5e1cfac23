"""Selects modules that may be equal blocks: several that look alike and make up most of the model."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from remate_runtime.bind import modules_by_path

LEAST = 3
"""Least number of equal modules. Tracing one individually takes about as long as tracing it twice in its place."""
SHARE = 0.5
"""Least share of a step that is saved. Below it, the first run of forward, which is discarded, costs more."""


def candidates(model: nn.Module) -> dict[str, nn.Module]:
    """Return modules with submodules that have the same class and equal parameters. Modules with a replaced forward or
    with updated statistics are traced in their places. The result is empty if they are a small part of the model."""
    alike: dict[Any, dict[str, nn.Module]] = {}
    for path, module in modules_by_path(model, each_once=True).items():
        parameters: Iterable[tuple[str, nn.Parameter]] = module.named_parameters()
        own = tuple((name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in parameters)
        whole = vars(module)["_modules"] or len(vars(module)["_parameters"]) > 2
        if path and own and whole and "forward" not in vars(module) and not _updates_statistics(module):
            alike.setdefault((type(module), own), {})[path] = module
    several = [kind for kind in alike.values() if len(kind) >= LEAST]
    repeated = {path: module for kind in several for path, module in kind.items()}
    saved = sum(_size(module) for kind in several for module in _all_but_first(kind, repeated))
    return repeated if saved >= SHARE * _size(model) else {}


def _updates_statistics(module: nn.Module) -> bool:
    return any(isinstance(m, _NormBase) and m.training and m.track_running_stats for m in module.modules())


def _size(module: nn.Module) -> int:
    """A rough measure of a module's work."""
    return sum(1 for _ in module.modules())


def _all_but_first(kind: Mapping[str, nn.Module], repeated: Mapping[str, nn.Module]) -> Iterator[nn.Module]:
    """The modules of one kind that are in no other module of `found`."""
    outer = [module for path, module in kind.items() if not any(above in repeated for above in _above(path))]
    yield from outer[1:]


def _above(path: str) -> Iterator[str]:
    parts = path.split(".")
    return (".".join(parts[:n]) for n in range(1, len(parts)))
