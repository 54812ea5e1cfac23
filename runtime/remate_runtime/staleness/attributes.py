"""What a live module or config holds under a name now, without running anything of it; its hooks; its forward."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch.nn.modules.module as _torch_module
from torch import nn

from .observing import observes
from .ownership import qualified
from .values import ABSENT, MISSING, Seen, attribute, held_by, is_config, recorded

CHILDREN = frozenset({"_modules", "_parameters", "_buffers"})  # read by name where forward goes through them
_HOOKS_READ = "_forward_hooks"  # stands for all hooks of a module that become part of the step
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
    "remate.training.watch",
}
_GLOBAL = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")


def record(value: Any, seen: Seen, tensors: bool = False, inline: bool = True, ordered: bool = True) -> Any:
    """As `recorded`, of what `attribute` gives."""
    return ABSENT if value is MISSING else recorded(value, seen, tensors, inline, ordered)


def record_attribute(thing: Any, name: str, seen: Seen) -> Any:
    """What a digest writes for `thing.name`. Tensors of modules are theirs, and read at every call; those of their
    classes and of configs are constants of the step. Objects in attributes stand in the digest on its own."""
    if isinstance(thing, nn.Module):
        held = held_by(thing)
        if name in CHILDREN:
            return _names_in_order(held.get(name, ()))
        if name == _HOOKS_READ:
            computing = (hook for kind, hook in hooks_of(thing) if not is_torchs(hook) and not only_looks(kind, hook))
            return [recorded(hook, seen) for hook in computing]
        own = name in held or any(name in held.get(each, ()) for each in REGISTERED)
        return record(attribute(thing, name), seen, tensors=not own, inline=False)
    return record(attribute(thing, name), seen, tensors=True, inline=False, ordered=not is_config(thing))


def _names_in_order(held: Iterable[str]) -> Any:
    """The names of submodules, parameters or buffers where forward goes through them; their count where they are
    numbers in order."""
    names = list(held)
    return {"length": len(names)} if names == [str(at) for at in range(len(names))] else names


def hook_reads(module: nn.Module) -> tuple[str, ...]:
    """The name under which the hooks of a module are recorded by value, if it has any."""
    return (_HOOKS_READ,) if any(held_by(module).get(key) for key in HOOKS.values()) else ()


def hooks_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """(kind, hook) of every hook of a module that forward or backward calls and that could matter."""
    for kind, key in HOOKS.items():
        for hook in vars(module).get(key, {}).values():
            if not is_forwards_own(hook) and not is_fully_shards(hook):
                yield kind, hook


def only_looks(kind: str, hook: Any) -> bool:
    """Whether a hook of forward can be seen to compute nothing, so that a schedule may leave it out."""
    return kind in ("forward", "forward_pre") and observes(hook)


def hook_name(kind: str, hook: Any) -> str:
    named = (
        hook
        if isinstance(inspect.getattr_static(hook, "__qualname__", None), str) or inspect.isroutine(hook)
        else type(hook)
    )
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
    """Whether a hook is one that `fully_shard` (FSDP2) installs: it gathers parameters and computes nothing. A schedule
    does that itself at the borders of a part, or refuses the model (`bind.fsdp2`)."""
    while not hasattr(hook, "__self__") and hasattr(hook, "__wrapped__"):  # of a list of modules in one call
        hook = hook.__wrapped__
    return type(getattr(hook, "__self__", None)).__module__ == "torch.distributed.fsdp._fully_shard._fsdp_state"


def is_observer(hook: Any) -> bool:
    """Whether a hook is one by which torch's counters (`FlopCounterMode`, `MemTracker`, `CommDebugMode`), or `remate
    train`, know the module that runs: it computes nothing. What they count in a schedule is the whole model's."""
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
