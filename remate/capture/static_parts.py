"""Which parts of a model are left where one module of it cannot be traced."""

from __future__ import annotations

import json

from torch import nn

from remate_runtime.format import fold_paths

_SHOWN = 6  # paths of one proposal


def static_parts(model: nn.Module, failed: str) -> str:
    """The call of `remate.plan` for the largest parts of a model that do not hold the module that failed: what stands beside
    it and beside those around it, and what it calls. "" where nothing is left that has modules of its own and trains."""
    found: list[str] = []
    around = [".".join(failed.split(".")[:n]) for n in range(1, failed.count(".") + 2)] if failed else []
    for path in ["", *around]:
        for name, child in model.get_submodule(path).named_children():
            whole = f"{path}.{name}".lstrip(".")
            if whole not in around:
                found += _parts(whole, child)
    if not found or len(folded := fold_paths(found)) > _SHOWN:
        return ""
    at = json.dumps(folded[0] if len(folded) == 1 else list(folded))
    return f"remate.plan(model, args, at={at})"


def _parts(path: str, module: nn.Module) -> list[str]:
    """The module, or what a list of modules holds, if planning it could pay."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return [one for name, child in module.named_children() for one in _parts(f"{path}.{name}", child)]
    trains = any(parameter.requires_grad for parameter in module.parameters())
    return [path] if trains and any(True for _ in module.children()) else []
