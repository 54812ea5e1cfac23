"""Which parts of a model are left where one module of it cannot be traced."""

from __future__ import annotations

import json

from torch import nn

from remate_runtime.format import fold_paths

_SHOWN = 6  # paths of one proposal


def static_parts(model: nn.Module, failed: str) -> str:
    """The call of `remate.plan` for the largest parts of a model that do not hold the module that failed, nor another
    of its class, which does the same: what stands beside them and beside those around them, and what they call. ""
    where nothing is left that has modules of its own and trains."""
    broken = model.get_submodule(failed)
    alike = not type(broken).__module__.startswith("torch.")  # torch's own fail for how they are set
    fails = {module for module in model.modules() if module is broken or (alike and type(module) is type(broken))}
    paths = _parts("", model, fails)
    if not paths or len(folded := fold_paths(paths)) > _SHOWN:
        return ""
    at = json.dumps(folded[0] if len(folded) == 1 else list(folded))
    return f"remate.plan(model, args, at={at})"


def _parts(path: str, module: nn.Module, fails: set[nn.Module]) -> list[str]:
    """The module, or what a list of modules holds or is left of it, if planning it could pay."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict) or not fails.isdisjoint(module.modules()):
        return [
            part
            for name, child in module.named_children()
            for part in _parts(f"{path}.{name}".lstrip("."), child, fails)
        ]
    trains = any(parameter.requires_grad for parameter in module.parameters())
    return [path] if trains and any(True for _ in module.children()) else []
