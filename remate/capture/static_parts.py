"""The parts of a model that can be traced if one module cannot."""

from __future__ import annotations

from torch import nn

from ..errors import CaptureError


def static_parts(model: nn.Module, failed: str) -> list[str]:
    """Return the paths of the largest parts of a model without the module that failed and without others of its class.

    A part has submodules and trains.

    Args:
        model: The model.
        failed: Path of the module that failed.
    """
    broken = model.get_submodule(failed)
    alike = not type(broken).__module__.startswith("torch.")  # modules of torch fail because of their arguments
    fails = {module for module in model.modules() if module is broken or (alike and type(module) is type(broken))}
    return _parts("", model, fails)


def _parts(path: str, module: nn.Module, fails: set[nn.Module]) -> list[str]:
    """The module, or the parts of it or of a list that can be traced, if planning could help."""
    if type(module).forward is nn.Module.forward or not fails.isdisjoint(module.modules()):  # lists have no forward
        return [
            part
            for name, child in module.named_children()
            for part in _parts(f"{path}.{name}".lstrip("."), child, fails)
        ]
    trains = any(parameter.requires_grad for parameter in module.parameters())
    return [path] if trains and any(True for _ in module.children()) else []


def lost_output(model: nn.Module, name: str, kind: str) -> CaptureError:
    """Return the refusal of an output that a file cannot hold. kind: its type."""
    cache = kind.endswith("Cache")
    hint = "call the model with use_cache=False" if cache else f"return its tensors, and create the {kind} outside"
    what = f"output {name!r} is" if name else "forward returns an object"
    message = f"{what} of type {kind}, which a file cannot hold"
    return CaptureError(message, hint=hint, parts=static_parts(model, ""))
