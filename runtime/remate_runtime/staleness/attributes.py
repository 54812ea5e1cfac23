"""What a live module or config holds under a name now, without running anything of it; its hooks; its forward."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch.nn.modules.module as _torch_module
from torch import nn

from .ownership import qualified
from .values import ABSENT, Hash, is_config, recorded

MISSING: Any = object()
REGISTERED = ("_parameters", "_buffers", "_modules")
HOOKS = {
    "forward": "_forward_hooks",
    "forward_pre": "_forward_pre_hooks",
    "backward": "_backward_hooks",
    "backward_pre": "_backward_pre_hooks",
}
FORWARDS_OWN_FLAG = "_output_capturing_hooks_installed"  # whether those of `is_forwards_own` are there
_COLLECTING = "transformers.utils.output_capturing"
_OBSERVERS = {
    "torch.utils.module_tracker",
    "torch.distributed._tools.mod_tracker",
    "torch.distributed.tensor.debug._comm_mode",
}
_GLOBAL = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")


def attribute(thing: Any, name: str) -> Any:
    """What `thing.name` is, MISSING if there is no such attribute. A method is the function, a property its getter; of one that is
    cached what it gives, which is not kept here."""
    held = getattr(thing, "__dict__", {})
    if name in held:
        return held[name]
    if isinstance(thing, nn.Module):
        for registered in REGISTERED:
            if name in held.get(registered, ()):
                return held[registered][name]
    found = inspect.getattr_static(type(thing), name, MISSING)
    if (found is MISSING and is_config(thing)) or inspect.ismemberdescriptor(found):
        return getattr(thing, name, MISSING)  # a config that knows an attribute by several names; a slot
    if isinstance(found, functools.cached_property):
        try:
            return found.func(thing)
        except Exception:  # the user's code, which may not work yet, or no more
            return MISSING
    return underlying(found)


def underlying(found: Any) -> Any:
    """The function of what a class holds for a static method, a class method or a property."""
    if isinstance(found, staticmethod | classmethod):
        return found.__func__
    return found.fget if isinstance(found, property) else found


def record(value: Any, source: Hash, tensors: bool = False) -> Any:
    """As `recorded`, of what `attribute` gives."""
    return ABSENT if value is MISSING else recorded(value, source, tensors)


def record_attribute(thing: Any, name: str, source: Hash) -> Any:
    """What a digest writes for `thing.name`. Tensors of modules are theirs, and read at every call; those of their classes
    and of configs are constants of the step."""
    held = getattr(thing, "__dict__", {})
    own = isinstance(thing, nn.Module) and any(name in held.get(each, ()) for each in REGISTERED)
    own = own or (isinstance(thing, nn.Module) and name in held)
    return record(attribute(thing, name), source, tensors=not own)


def hooks_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """(kind, hook) of every hook of a module that forward or backward calls and that could matter."""
    for kind, key in HOOKS.items():
        for hook in vars(module).get(key, {}).values():
            if not is_forwards_own(hook) and not is_fully_shards(hook):
                yield kind, hook


def hook_name(kind: str, hook: Any) -> str:
    named = hook if hasattr(hook, "__qualname__") else type(hook)
    return f"{kind}: {qualified(named)}"


def is_forwards_own(hook: Any) -> bool:
    """Whether a hook is one that forward itself installs when it runs first, to collect what it returns: the capture
    traces what it does, with it or without."""
    return getattr(hook, "__module__", None) == _COLLECTING


def collected_within(module: nn.Module) -> list[str]:
    """What the forward that is running right now, of a model around this module, collects by such hooks of the module's
    submodules: a schedule calls none of them. ["router_logits"]; none where the module collects for itself."""
    collector = getattr(sys.modules.get(_COLLECTING), "_active_collector", None)
    if collector is None or not (collected := collector.get()) or getattr(module, "_can_record_outputs", None):
        return []
    hooks = (hook for one in module.modules() if one is not module for hook in one._forward_hooks.values())
    keys = [inspect.getclosurevars(hook).nonlocals.get("key") for hook in hooks if is_forwards_own(hook)]
    return [str(key) for key in collected if key in keys]


def is_fully_shards(hook: Any) -> bool:
    """Whether a hook is one that `fully_shard` (FSDP2) installs: it gathers parameters and computes nothing. A schedule does
    that itself at the borders of a part, or refuses the model (`bind.fsdp2`)."""
    while not hasattr(hook, "__self__") and hasattr(hook, "__wrapped__"):  # of a list of modules in one call
        hook = hook.__wrapped__
    return type(getattr(hook, "__self__", None)).__module__ == "torch.distributed.fsdp._fully_shard._fsdp_state"


def is_observer(hook: Any) -> bool:
    """Whether a hook is one by which torch's counters (`FlopCounterMode`, `MemTracker`, `CommDebugMode`) know the module that
    runs: it computes nothing. What they count in a schedule is the whole model's."""
    return getattr(hook, "__module__", None) in _OBSERVERS


def is_torchs(hook: Any) -> bool:
    """Whether a hook is one of `torch.nn.utils`, which computes a weight: it is part of what the capture traces."""
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return module.startswith("torch.nn.utils")


def global_hooks() -> list[str]:
    """Names of the hooks that are registered for all modules there are, and that could matter."""
    hooks = (hook for key in _GLOBAL for hook in getattr(_torch_module, key, {}).values())
    return [hook_name("global", hook) for hook in hooks if not is_observer(hook)]


def replaced_forward(module: nn.Module) -> Any:
    """The `forward` that somebody put into the attributes of a module, MISSING if it is the class's own."""
    found = vars(module).get("forward", MISSING)
    own = inspect.getattr_static(type(module), "forward", None)
    same = getattr(found, "__self__", None) is module and getattr(found, "__func__", None) is own
    return MISSING if same else found
