"""Checks at every call that the model has not changed since the schedule was applied.

What the digest records is watched cheaply, and compared by value where an object is no longer the same one.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from ..bind.modules import modules_by_path
from ..errors import REPLAN, StaleModelError, StaleModelWarning
from ..format.module_paths import unfold_paths
from ..format.schedule import Digest, ModuleGroup
from .attributes import (
    CHILDREN,
    REGISTERED,
    global_hooks,
    hook_name,
    hooks_of,
    only_looks,
    record_attribute,
    replaced_forward,
)
from .code import Code
from .differences import CHECKPOINTS, Differences
from .digest import at_index, at_path, code_of, compare_digest, make_digest
from .library import tensor_methods
from .lookup import CALL, Lookup
from .names import cell_contents
from .ownership import qualified
from .unregistered import Unregistered, changes, held_in, read_names
from .values import MISSING, accepts, held_by, hiding, underlying
from .watched import ModelSnapshot

_HINT = (
    f"{REPLAN}; what changes while training belongs into a buffer or a tensor attribute, which are read at every call; "
    "what a training loop sets before it begins is planned with remate.record(model)"
)


class Guard:
    """Watches a model; `check` raises StaleModelError if the model has changed since the guard was created."""

    def __init__(self, model: nn.Module, digest: Digest | None, code: Code, deferred: bool = False) -> None:
        """Watch a model.

        Args:
            model: The live model.
            digest: What the file records of the model.
            code: The model's code, already followed as in `compare_digest`.
            deferred: The digest's values hold from the first call on.
        """
        self._model = model
        self._modules = modules_by_path(model, each_once=True)
        self._digest = make_digest(model, {}, {}, code).digest if digest is None else digest
        if digest is not None and not deferred:
            self._digest = _as_it_is(digest, model, code)
        self._forwards = {path: replaced_forward(module) for path, module in self._modules.items()}
        self._calls = {path: held_by(module).get(CALL) for path, module in self._modules.items()}
        self._unregistered = Unregistered(model, self._roots(code), code)
        self._recorded = self._unregistered.described()
        self._lookup: Lookup = self._looked_up(code)
        self._bound = _bound(code, self._modules)
        self._observers = {hook for hooks in observing_hooks(self._model) for hook in hooks}
        self._questions = code.questions
        self._answers: dict[str, Any] | None = (
            None  # answers at the first call, which is compared with the model itself
        )
        self._watched = None if deferred else self._watch(code)

    def check(self) -> None:
        """Raise StaleModelError with what changed and what to do."""
        if self._watched is None or not self._watched.same() or not self._lookup.same():
            code = code_of(self._digest)
            names = () if self._watched is None else self._watched.replaced_code()
            replaced = [f"the code of {name!r} was replaced" for name in names]
            differences = self._compared(code)
            unregistered = Unregistered(self._model, self._roots(code), code)
            described = unregistered.described()
            changed = changes(self._recorded, described)
            if not (faults := [*differences.faults, *self._faults()]):
                faults = [*replaced, *self._lookup.changes(), *changed.texts]
            if faults:
                text = _described([*self._rebound(), *faults], differences)
                raise StaleModelError(text, differences.numbers, changed.constants)
            self._warn_of_observers()
            self._unregistered, self._recorded = unregistered, described
            self._watched, self._bound = self._watch(code), _bound(code, self._modules)
            self._lookup = self._looked_up(code)
            self._questions = code.questions
        if self._questions:
            self._ask()

    def _ask(self) -> None:
        """Raise StaleModelError if a process setting that forward reads has changed since the first call."""
        answers = {name: ask() for name, ask in self._questions.items()}
        was, self._answers = self._answers or answers, {**answers, **(self._answers or {})}
        if changed := [
            f"{name} was {was[name]!r}, is {now!r}" for name, now in answers.items() if was.get(name, now) != now
        ]:
            raise StaleModelError(
                "settings of the process that forward reads changed after the first call:\n  - "
                + "\n  - ".join(changed)
                + "\n  set it back, or apply the schedule again, which compares its next call with the model; "
                f"else {REPLAN}"
            )

    def _looked_up(self, code: Code) -> Lookup:
        paths = (path for group in self._digest.objects for path in unfold_paths(group.at))
        objects = [obj for path in paths if (obj := at_path(self._model, path)) is not MISSING]
        return Lookup(self._modules, [*objects, *code.objects.values(), *self._unregistered.modules.values()])

    def _roots(self, code: Code) -> Iterator[tuple[str, object]]:
        """Yield what forward reads and modules may be in, with names for messages."""
        for name, (holder, key) in code.held.items():
            yield name, _held(holder).get(key)
        for at, cell in enumerate(code.cells.values()):
            yield f"closure {at}", cell_contents(cell)
        for name, held, key in self._attributes(code):
            yield name, held[key]

    def _attributes(self, code: Code) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Yield name, holder and key of what objects and modules hold, as far as the code names it."""
        functions = (function for function in code.all_followed() if function.__name__ != "__init__")
        named = {name for function in functions for name in function.__code__.co_names}
        paths = [path for group in self._digest.objects for path in unfold_paths(group.at)]
        objects = [(path, at_path(self._model, path)) for path in paths]
        for name, obj in (*objects, *((type(obj).__qualname__, obj) for obj in code.objects.values())):
            yield from ((f"{name}.{key}", held_by(obj), key) for key in held_by(obj) if key in named)
        for path, module in self._modules.items():
            held = held_by(module)
            for key in sorted(code.own_names.get(type(module), ())):
                if key in held:
                    yield f"{path}.{key}".lstrip("."), held, key

    def _rebound(self) -> Iterator[str]:
        """Yield a text for each function that was rebound to a different one."""
        for name, (holder, key, was) in self._bound.items():
            now = underlying(_held(holder).get(key, MISSING))
            if now is not was:
                before, after = qualified(was), "gone" if now is MISSING else qualified(now)
                after = "a wrapper, or a new function" if after == before else after
                yield f"function {name!r} was {before}, is {after}"

    def _compared(self, code: Code) -> Differences:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compare_digest(self._digest, torch.__version__.partition("+")[0], self._model, code, when="")

    def _faults(self) -> Iterator[str]:
        for path, module in self._modules.items():
            forward = replaced_forward(module)
            if forward is not self._forwards[path]:
                by = "taken back" if forward is MISSING else f"replaced by {qualified(forward)!r}"
                place = f"module {path!r}" if path else "the model"
                yield f"{place} ({type(module).__name__}): its forward was {by}"
            if path and held_by(module).get(CALL) is not self._calls[path]:
                yield f"module {path!r} ({type(module).__name__}): its attribute {CALL} was replaced"
        for hook in global_hooks():
            yield f"the hook {hook!r}, registered for all modules, would not be called for submodules: remove it"

    def _warn_of_observers(self) -> None:
        observers = {hook for hooks in observing_hooks(self._model) for hook in hooks}
        if new := sorted(observers - self._observers):
            warnings.warn(not_called(new), StaleModelWarning, stacklevel=6)
        self._observers = observers

    def _watch(self, code: Code) -> ModelSnapshot:
        """Watch everything that the digest describes, in its current state.

        Args:
            code: The model's code, already followed.
        """
        watched = ModelSnapshot()
        for path, module in self._modules.items():
            watched.object(module, ("forward", "__call__", CALL))
            watched.object(module, code.members.get(type(module), ()))
            if path:
                watched.hooks(module)
        for group in (*self._digest.modules, *self._digest.objects):
            for path in unfold_paths(group.at):
                obj = self._modules.get(path, MISSING) if path in self._modules else at_path(self._model, path)
                if obj is not MISSING:
                    _watch_reads(watched, obj, group.reads)
                    if not isinstance(obj, nn.Module):
                        watched.object(obj, _methods(obj))
        _watch_code(watched, code)
        watched.code(code.library.all_followed())
        for _, held, key in self._attributes(code):
            if next(held_in(held[key], key), None) is not None:
                watched.entry(held, key)
        self._watch_unregistered(watched)
        watched.settle()
        return watched

    def _watch_unregistered(self, watched: ModelSnapshot) -> None:
        for module in self._unregistered.modules.values():
            held = held_by(module)
            watched.object(module, ("forward", "__call__", CALL, *read_names(module)))
            watched.hooks(module)
            watched.order(held["_modules"])
            for registry in REGISTERED:
                watched.entry(held, registry)
                for name in held[registry]:
                    watched.entry(held[registry], name)
        for tensor in self._unregistered.tensors():
            watched.tensor(tensor)
        _watch_code(watched, self._unregistered.code)


def _watch_code(watched: ModelSnapshot, code: Code) -> None:
    for obj in code.objects.values():
        watched.object(obj, (*code.known_fields.get(type(obj).__qualname__, ()), *_methods(obj)))
        watched.content(obj)
    for holder, key in (*code.held.values(), *code.library.places.values()):
        watched.entry(holder, key)
    for registry, key in code.library.entries:
        watched.ask(functools.partial(registry.get, key))
    for cell in code.cells.values():
        watched.ask(functools.partial(getattr, cell, "cell_contents", MISSING))
    for function in code.all_followed():
        watched.function(function)
    for name in tensor_methods(code.all_followed()):
        watched.entry(torch.Tensor, name)


def _bound(code: Code, modules: dict[str, nn.Module]) -> dict[str, tuple[Mapping[str, Any] | type, str, Any]]:
    """Return holder, key and value of the functions that forward reaches, by name."""
    places = {**code.held, **code.library.places}
    for kind in {type(module) for module in modules.values()}:
        base = next(base for base in kind.__mro__ if "forward" in vars(base))
        places[f"{qualified(kind)}.forward"] = (base if base is not nn.Module else kind, "forward")
    places_by_name = {name: (holder, key, underlying(_held(holder).get(key))) for name, (holder, key) in places.items()}
    return {name: place for name, place in places_by_name.items() if inspect.isroutine(place[2])}


def _held(holder: Mapping[str, object] | type) -> Mapping[str, Any]:
    return vars(holder) if isinstance(holder, type) else holder


def _watch_reads(watched: ModelSnapshot, obj: object, names: Collection[str]) -> None:
    watched.object(obj, [name for name in names if name not in CHILDREN and name != "_forward_hooks"])
    for name in names:
        if name in CHILDREN and name in held_by(obj):
            watched.order(held_by(obj)[name])


def _methods(obj: object) -> Iterator[str]:
    """Yield the methods of an object's class that one of its attributes could hide."""
    yield from hiding(obj)
    for base in type(obj).__mro__:
        if base is not object:
            yield from (name for name, member in vars(base).items() if isinstance(member, types.FunctionType))


def _as_it_is(digest: Digest, model: nn.Module, code: Code) -> Digest:
    """Return the digest with the model's current values in place of those that differ."""
    modules = modules_by_path(model, each_once=True)

    def group(entry: ModuleGroup) -> ModuleGroup:
        paths = list(unfold_paths(entry.at))
        values_at = [modules[path] if path in modules else at_path(model, path) for path in paths]
        reads = dict(entry.reads)
        for name, value in entry.reads.items():
            was = [at_index(value, index) for index in range(len(paths))]
            now = [w if t is MISSING else _now(w, t, name, code) for w, t in zip(was, values_at, strict=True)]
            if now != was:
                reads[name] = {"each": now}
        return replace(entry, reads=reads)

    return replace(
        digest,
        at_call=False,
        modules=tuple(map(group, digest.modules)),
        objects=tuple(map(group, digest.objects)),
        functions=code.functions,
        values={
            name: was if accepts(was := digest.values.get(name), now) else now for name, now in code.values.items()
        },
        patched=dict(code.library.patched),
    )


def _now(was: object, obj: object, name: str, code: Code) -> Any:
    now = record_attribute(obj, name, code)
    return was if accepts(was, now) else now


def observing_hooks(model: nn.Module) -> Iterator[list[str]]:
    """Yield the names of hooks of submodules that a schedule leaves out because they only observe."""
    for path, module in modules_by_path(model, each_once=True).items():
        if path:
            yield [f"{path}: {hook_name(kind, hook)}" for kind, hook in hooks_of(module) if only_looks(kind, hook)]


def not_called(hooks: Collection[str]) -> str:
    """Return the warning about hooks that a schedule leaves out."""
    return (
        f"a schedule does not call the hooks of submodules that only look at what forward computes: {', '.join(hooks)}"
    )


def _described(faults: list[str], differences: Differences) -> str:
    text = "the model changed after the schedule was applied:\n  - " + "\n  - ".join(faults)
    if differences.hint == CHECKPOINTS:
        return f"{text}\n  {CHECKPOINTS}"
    back = f": {differences.settings}" if differences.settings else ""
    live = f"\n  {differences.live}" if differences.live else ""
    return f"{text}\n  set it back{back}, or {_HINT}{live}"
