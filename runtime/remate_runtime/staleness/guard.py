"""At every call, what can be seen cheaply: hooks and replaced forwards of submodules, and the attributes, globals and
functions that the plan depends on, against what they were when the schedule was applied."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import CellType
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import REPLAN, StaleModelError
from ..format.module_paths import unfold_paths
from ..format.schedule import Digest, ModuleGroup
from .attributes import (
    HOOKS,
    MISSING,
    attribute,
    global_hooks,
    hook_name,
    hooks_of,
    record,
    record_attribute,
    replaced_forward,
    underlying,
)
from .code import Code
from .differences import (
    CHECKPOINTS,
    assignment,
    checkpoints,
    is_number,
    live_hint,
    shown,
    told_settings,
)
from .digest import accepts, at_index, at_path, same
from .ownership import qualified
from .values import is_constant

_MANY = 256  # items of a container that are looked through for tensors
_PLAIN = frozenset({bool, int, float, str, type(None)})
_FORWARD, _FORWARD_PRE, _BACKWARD, _BACKWARD_PRE = HOOKS.values()
_HINT = (
    f"{REPLAN}; what changes while training belongs into a buffer or a tensor attribute, which are read at every call; "
    "what a training loop sets before it begins is planned with remate.record(model)"
)


class _Read(NamedTuple):
    """An attribute that the plan depends on, with what it was when the schedule was applied."""

    path: str
    kind: str
    thing: Any
    name: str
    was: Any


class Guard:
    """`check` raises StaleModelError if the model is not what it was when the guard was made."""

    def __init__(self, model: nn.Module, digest: Digest | None, code: Code) -> None:
        self._code = code
        self._modules = dict(model.named_modules())
        groups = (*digest.modules, *digest.objects) if digest is not None else ()
        self._reads = [read for group in groups for read in self._of(group, model)]
        self._forwards = {path: replaced_forward(module) for path, module in self._modules.items()}
        self._hooks = {path: tuple(hooks_of(module)) for path, module in self._modules.items() if path}
        self._held = {name: (*held, self._global(*held)) for name, held in code.held.items()}
        self._cells = {name: (cell, self._holds(cell)) for name, cell in code.cells.items()}
        defining = (_defining(type(module), "forward") for module in self._modules.values())
        self._classes = {base: vars(base)["forward"] for base in defining if base is not None}
        self._prepare()

    def _of(self, group: ModuleGroup, model: nn.Module) -> Iterator[_Read]:
        for index, path in enumerate(unfold_paths(group.at)):
            thing = self._modules.get(path) if path in self._modules else at_path(model, path)
            for name, value in group.reads.items() if thing is not MISSING else ():
                was, now = at_index(value, index), record_attribute(thing, name, self._code.source)
                yield _Read(path, group.kind, thing, name, was if accepts(was, now) else now)

    def _global(self, holder: Mapping[str, Any], key: str) -> Any:
        """What a digest writes of it: functions by their source, tensors by their contents."""
        return record(underlying(holder.get(key, MISSING)), self._code.source, tensors=True)

    def _holds(self, cell: CellType) -> Any:
        return record(cell.cell_contents, self._code.source, tensors=True)

    def _prepare(self) -> None:
        """What `check` looks up: plain lookups in dicts, contents of containers and versions of tensors in them, attributes
        that have to be requested."""
        entries: dict[tuple[int, str], tuple[Mapping[str, Any], str, Any]] = {}
        self._contents: list[tuple[Any, Any]] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._requested: list[tuple[Any, str, Any]] = []

        def entry(owner: Any, holder: Mapping[str, Any], name: str) -> None:
            if (id(owner), name) not in entries:
                entries[id(owner), name] = (holder, name, holder.get(name, MISSING))

        for module in self._modules.values():
            entry(module, vars(module), "forward")
        for base in self._classes:
            entry(base, vars(base), "forward")
        for kind in {type(module) for module in self._modules.values()}:
            for base in itertools.takewhile(lambda base: base not in self._classes, kind.__mro__):
                entry(base, vars(base), "forward")  # there is none yet
        for read in self._reads:
            found = attribute(read.thing, read.name)
            held = getattr(read.thing, "__dict__", {})
            entry(read.thing, held, read.name)
            base = None if read.name in held else _defining(type(read.thing), read.name)
            if base is not None:
                entry(base, vars(base), read.name)
            elif read.name not in held and not isinstance(read.thing, nn.Module):
                self._requested.append((read.thing, read.name, getattr(read.thing, read.name, MISSING)))
            self._content(found, read.was)
        for name, (holder, key, was) in self._held.items():
            entry(name, holder, key)
            self._content(holder.get(key, MISSING), was)
        for cell, was in self._cells.values():
            self._requested.append((cell, "cell_contents", cell.cell_contents))
            self._content(cell.cell_contents, was)
        self._bare = [vars(self._modules[path]) for path in self._hooks if not _has_hooks(vars(self._modules[path]))]
        self._hooked = [path for path in self._hooks if _has_hooks(vars(self._modules[path]))]
        self._entries = list(entries.values())

    def _content(self, found: Any, was: Any) -> None:
        if isinstance(found, list | dict | set):
            partly = isinstance(was, dict) and "length" in was and "hash" not in was
            self._contents.append((found, len(found) if partly else found.copy()))
        self._versions += [(tensor, tensor._version) for tensor in _constants(found)]

    def check(self) -> None:
        """Raise StaleModelError, naming what changed and what to do."""
        if not self._is_as_it_was():
            faults = list(self._faults())
            if faults:
                told = "\n  - ".join(faults)
                if any(r.was is False and checkpoints(r.name, attribute(r.thing, r.name)) for r in self._reads):
                    raise StaleModelError(
                        f"the model changed after the schedule was applied:\n  - {told}\n  {CHECKPOINTS}"
                    )
                back = f": {settings}" if (settings := self._settings()) else ""
                live = live_hint(self._numbers())
                raise StaleModelError(
                    f"the model changed after the schedule was applied:\n  - {told}\n  set it back{back}, or {_HINT}"
                    + (f"\n  {live}" if live else "")
                )
            self._prepare()

    def _is_as_it_was(self) -> bool:
        for holder, name, was in self._entries:
            now = holder.get(name, MISSING)
            if now is not was and not (type(now) is type(was) and type(now) in _PLAIN and now == was):
                return False
        for held in self._bare:
            if _has_hooks(held):
                return False
        for path in self._hooked:
            if tuple(hooks_of(self._modules[path])) != self._hooks[path]:
                return False
        return not global_hooks() and self._holds_what_it_held()

    def _holds_what_it_held(self) -> bool:
        for tensor, version in self._versions:
            if tensor._version != version:
                return False
        try:
            for contents, was in self._contents:
                if (len(contents) if type(was) is int else contents) != was:
                    return False
            for thing, name, was in self._requested:
                now = getattr(thing, name, MISSING)
                if now is not was and now != was:
                    return False
        except (ValueError, RuntimeError):  # things that do not compare, arrays say: looked at one by one
            return False
        return True

    def _numbers(self) -> list[str]:
        """Attributes that were a number and are another one."""
        found = [(read, record_attribute(read.thing, read.name, self._code.source)) for read in self._reads]
        changed = [read for read, now in found if is_number(now) and is_number(read.was) and not accepts(read.was, now)]
        return [f"{read.path}.{read.name}".lstrip(".") for read in changed]

    def _settings(self) -> str:
        found: dict[str, None] = {}
        for read in self._reads:
            if not accepts(read.was, record_attribute(read.thing, read.name, self._code.source)):
                found.update(dict.fromkeys(assignment(read.path, read.name, read.was)))
        return told_settings(found)

    def _faults(self) -> Iterator[str]:
        for read in self._reads:
            now = record_attribute(read.thing, read.name, self._code.source)
            if not accepts(read.was, now):
                yield f"{_place(read.path, read.kind)}: attribute {read.name} was {shown(read.was)}, is {shown(now)}"
        for path, module in self._modules.items():
            kind = qualified(type(module))
            forward = replaced_forward(module)
            if forward is not self._forwards[path]:
                by = "taken back" if forward is MISSING else f"replaced by {qualified(forward)!r}"
                yield f"{_place(path, kind)}: its forward was {by}"
            was, now = self._hooks.get(path, ()), tuple(hooks_of(module)) if path else ()
            for hook in [hook for hook in now if hook not in was]:
                yield f"{_place(path, kind)}: the hook {hook_name(*hook)!r} is new, and a schedule would not call it"
            for hook in [hook for hook in was if hook not in now]:
                yield f"{_place(path, kind)}: the hook {hook_name(*hook)!r} is gone, and a schedule computes with it"
        for name, (holder, key, was) in self._held.items():
            now = self._global(holder, key)
            if not same(now, was):
                yield f"global {name!r} was {shown(was)}, is {shown(now)}"
        for name, (cell, was) in self._cells.items():
            now = self._holds(cell)
            if not same(now, was):
                yield f"{name!r}, which a closure holds, was {shown(was)}, is {shown(now)}"
        for base, was in self._classes.items():
            now = vars(base).get("forward", MISSING)
            if now is not was:
                yield f"class {qualified(base)!r}: its forward was replaced by {qualified(now)!r}"
        for kind in {type(module): None for module in self._modules.values()}:
            base = _defining(kind, "forward")
            if base is not None and base not in self._classes:
                yield f"class {qualified(base)!r}: has got a forward of its own, {qualified(vars(base)['forward'])!r}"
        for hook in global_hooks():
            yield f"the hook {hook!r}, registered for all modules, would not be called for submodules: remove it"


def _constants(found: Any) -> Iterator[torch.Tensor]:
    """Tensors whose contents the plan depends on: the value of a global, or inside of a container."""
    if is_constant(found) and not found.is_inference():
        yield found
    elif isinstance(found, list | tuple | dict):
        for item in itertools.islice(found.values() if isinstance(found, dict) else found, _MANY):
            if isinstance(item, torch.Tensor | list | tuple | dict):
                yield from _constants(item)


def _has_hooks(held: Mapping[str, Any]) -> bool:
    return bool(held[_FORWARD] or held[_FORWARD_PRE] or held[_BACKWARD] or held[_BACKWARD_PRE])


def _defining(kind: type, name: str) -> type | None:
    """The class that defines `name` for instances of `kind`."""
    return next((base for base in kind.__mro__ if name in vars(base)), None)


def _place(path: str, kind: str) -> str:
    short = kind.rpartition(".")[2]
    return f"module {path!r} ({short})" if path else f"the model ({short})"
