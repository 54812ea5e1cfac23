"""Reads the current attributes, hooks and forward of a live module or config without running any of its code."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch.nn.modules.module as _torch_module
from torch import nn

from ..torch_private.execution import FSDP2_STATE, OBSERVERS
from .observing import observes
from .ownership import qualified
from .values import ABSENT, MISSING, Seen, attribute, held_by, is_config, recorded

CHILDREN = frozenset({"_modules", "_parameters", "_buffers"})  # read by name where forward goes through them
_HOOKS_READ = "_forward_hooks"  # records all hooks of a module that become part of the step
REGISTERED = ("_parameters", "_buffers", "_modules")
HOOKS = {
    "forward": "_forward_hooks",
    "forward_pre": "_forward_pre_hooks",
    "backward": "_backward_hooks",
    "backward_pre": "_backward_pre_hooks",
}
FORWARDS_OWN_FLAG = "_output_capturing_hooks_installed"  # set once the hooks of `is_forwards_own` are installed
_COLLECTING = "transformers.utils.output_capturing"
_OBSERVERS = {*OBSERVERS, "remate.training.watch"}
_GLOBAL = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")


def record(value: object, seen: Seen, tensors: bool = False, inline: bool = True, ordered: bool = True) -> Any:
    """Describe what `attribute` returned, as `recorded` does; a missing attribute becomes ABSENT."""
    return ABSENT if value is MISSING else recorded(value, seen, tensors, inline, ordered)


def record_attribute(obj: object, name: str, seen: Seen) -> Any:
    """Return what a digest records for attribute `name` of a module or an object.

    Tensors that a module registers are read at every call, so the digest leaves them out. Tensors of classes and of
    configs are constants of the step. Objects in attributes have their own entries in the digest.

    Args:
        obj: The module, object or config.
        name: The attribute.
        seen: The code that reads the attribute.
    """
    if isinstance(obj, nn.Module):
        attributes = held_by(obj)
        if name in CHILDREN:
            return _names_in_order(attributes.get(name, ()))
        if name == _HOOKS_READ:
            computing = (hook for kind, hook in hooks_of(obj) if not is_torchs(hook) and not only_looks(kind, hook))
            return [recorded(hook, seen) for hook in computing]
        if name == "forward":
            return record(replaced_forward(obj), seen)
        registered = name in attributes or any(name in attributes.get(registry, ()) for registry in REGISTERED)
        return record(attribute(obj, name), seen, tensors=not registered, inline=False)
    return record(attribute(obj, name), seen, tensors=True, inline=False, ordered=not is_config(obj))


def _names_in_order(held: Iterable[str]) -> Any:
    """Return the names of submodules, parameters or buffers in order, or their count where the names are 0, 1, 2, …"""
    names = list(held)
    return {"length": len(names)} if names == [str(at) for at in range(len(names))] else names


def hook_reads(module: nn.Module) -> tuple[str, ...]:
    """Return the name under which the hooks of a module are recorded by value; empty without hooks."""
    return (_HOOKS_READ,) if any(held_by(module).get(key) for key in HOOKS.values()) else ()


def hooks_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield (kind, hook) of every hook of a module that runs in forward or backward and that may affect the step."""
    for kind, key in HOOKS.items():
        for hook in vars(module).get(key, {}).values():
            if not is_forwards_own(hook) and not is_fully_shards(hook):
                yield kind, hook


def only_looks(kind: str, hook: object) -> bool:
    """Return whether a forward hook provably computes nothing, so that a schedule may leave it out."""
    return kind in ("forward", "forward_pre") and observes(hook)


def hook_name(kind: str, hook: object) -> str:
    named = (
        hook
        if isinstance(inspect.getattr_static(hook, "__qualname__", None), str) or inspect.isroutine(hook)
        else type(hook)
    )
    return f"{kind}: {qualified(named)}"


def is_forwards_own(hook: object) -> bool:
    """Return whether forward itself installed a hook at its first run to collect outputs.

    The capture traces the effect of such hooks, whether they are installed yet or not.
    """
    return getattr(hook, "__module__", None) == _COLLECTING


def collected_within(module: nn.Module) -> list[str]:
    """Return the outputs that the running forward of an enclosing model collects by hooks of submodules of `module`.

    A schedule does not call these hooks. Example: `["router_logits"]`. Empty if the module collects them itself.
    """
    collector = getattr(sys.modules.get(_COLLECTING), "_active_collector", None)
    if collector is None or not (collected := collector.get()) or getattr(module, "_can_record_outputs", None):
        return []
    inside = (submodule for submodule in module.modules() if submodule is not module)
    hooks = (hook for submodule in inside for hook in vars(submodule)[_HOOKS_READ].values())
    keys = [inspect.getclosurevars(hook).nonlocals.get("key") for hook in hooks if is_forwards_own(hook)]
    return [str(key) for key in collected if key in keys]


def is_fully_shards(hook: Any) -> bool:
    """Return whether `fully_shard` (FSDP2) installed a hook. Such hooks gather parameters and compute nothing.

    A schedule gathers parameters itself at the borders of a part, or refuses the model (`bind.fsdp2`).
    """
    while not hasattr(hook, "__self__") and hasattr(
        hook, "__wrapped__"
    ):  # one call for a list of modules wraps the hook
        hook = hook.__wrapped__
    return type(getattr(hook, "__self__", None)).__module__ == FSDP2_STATE


def is_observer(hook: object) -> bool:
    """Return whether a hook only records which module runs.

    torch's counters (`FlopCounterMode`, `MemTracker`, `CommDebugMode`) and `remate train` install such hooks. In a
    schedule they count for the whole model.
    """
    return getattr(hook, "__module__", None) in _OBSERVERS


def is_torchs(hook: object) -> bool:
    """Return whether a hook of `torch.nn.utils` computes a weight. The capture traces it."""
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return module.startswith("torch.nn.utils")


def global_hooks() -> list[str]:
    """Return the names of hooks that are registered for all modules and that may affect the step."""
    registries = [getattr(_torch_module, key, {}) for key in _GLOBAL]
    if not any(registries):
        return []
    hooks = (hook for registry in registries for hook in registry.values())
    return [hook_name("global", hook) for hook in hooks if not is_observer(hook)]


def replaced_forward(module: nn.Module) -> Any:
    """Return the `forward` that was set on a module itself; MISSING if its class defines it."""
    forward = vars(module).get("forward", MISSING)
    defined = inspect.getattr_static(type(module), "forward", None)
    is_defined = getattr(forward, "__self__", None) is module and getattr(forward, "__func__", None) is defined
    return MISSING if is_defined else forward
