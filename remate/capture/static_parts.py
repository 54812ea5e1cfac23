"""The parts of a model that can be traced if one module cannot."""

from __future__ import annotations

import json

from torch import nn

from remate_runtime.format import fold_paths

_SHOWN = 6  # paths of one proposal


def static_parts(model: nn.Module, failed: str) -> str:
    """Return a call of `remate.plan` for the largest parts of a model without the module that failed and without
    others of its class, or "" if no such part has submodules and trains.

    Args:
        model: The model.
        failed: Path of the module that failed.
    """
    broken = model.get_submodule(failed)
    alike = not type(broken).__module__.startswith("torch.")  # modules of torch fail because of their arguments
    fails = {module for module in model.modules() if module is broken or (alike and type(module) is type(broken))}
    paths = _parts("", model, fails)
    if not paths or len(folded := fold_paths(paths)) > _SHOWN:
        return ""
    at = json.dumps(folded[0] if len(folded) == 1 else list(folded))
    return f"remate.plan(model, args, at={at})"


def _parts(path: str, module: nn.Module, fails: set[nn.Module]) -> list[str]:
    """The module, or the parts of it or of a list that can be traced, if planning could help."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict) or not fails.isdisjoint(module.modules()):
        return [
            part
            for name, child in module.named_children()
            for part in _parts(f"{path}.{name}".lstrip("."), child, fails)
        ]
    trains = any(parameter.requires_grad for parameter in module.parameters())
    return [path] if trains and any(True for _ in module.children()) else []
