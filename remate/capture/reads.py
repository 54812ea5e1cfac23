"""What forward reads of a model's attributes and configs while it is traced, and which hooks take part.

Recorded are reads of instance and class attributes by name, as they were when forward first read them; attributes that
are not there when requested; fields of configs. Not recorded: tensors, parameters, buffers and submodules (the signature
has them), training flags (too), and what is read of `__dict__`. What forward itself changes is put back, and told by
`changes`: whether it matters is found out by tracing once more with it.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from remate_runtime.format import Digest
from remate_runtime.staleness import (
    CHECKPOINTS,
    FORWARDS_OWN_FLAG,
    MISSING,
    OPAQUE,
    Code,
    attribute,
    checkpoints,
    hook_name,
    is_config,
    is_forwards_own,
    is_own,
    is_torchs,
    make_digest,
    record,
    record_attribute,
    replaced_forward,
    same,
)

from ..errors import CaptureError
from .changes import Change, TraceChanges

_MACHINERY = frozenset(
    {*vars(nn.Module()), *vars(nn.Module), *dir(nn.Module), "training", "__dict__", FORWARDS_OWN_FLAG}
)
_NO_OBJECTS = (type, nn.Module, torch.Tensor, enum.Enum, tuple, list, dict, set)
_KEYS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Reads:
    """Watches one model. `watching()` is for the time that its forward runs; `digest()` reports what was seen."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._code = Code()
        self._seen: dict[int, dict[str, Any]] = {}  # by module or config: attribute -> what it was
        self._methods: dict[tuple[int, str], Any] = {}
        self._written: dict[int, set[str]] = {}
        self._held: dict[int, tuple[Any, list[tuple[int, str]]]] = {}  # configs, and who holds them
        self._patched: dict[type, Any] = {}
        self._saved: dict[int, tuple[Any, dict[str, Any]]] = {}  # configs, and their attributes before forward
        self._changed: dict[tuple[int, str], Change] = {}
        self._noting: Callable[[], None] | None = None
        self.stored: list[tuple[str, torch.Tensor]] = []  # attributes of configs that forward set to tensors, by path

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While forward runs. Attribute access of modules is slow meanwhile, and as before afterwards."""
        usual = nn.Module.__setattr__
        reads = self

        def read(module: nn.Module, name: str) -> Any:
            try:
                found = object.__getattribute__(module, name)
            except AttributeError:
                reads._read(module, name, MISSING)
                raise
            reads._read(module, name, found)
            return found

        def write(module: nn.Module, name: str, value: Any) -> None:
            if reads._noting is not None:
                reads._noting()
            if id(module) in reads._paths:
                reads._written.setdefault(id(module), set()).add(name)
            usual(module, name, value)

        nn.Module.__getattribute__ = read  # type: ignore[method-assign]
        nn.Module.__setattr__ = write  # type: ignore[method-assign]
        try:
            yield
        finally:
            del nn.Module.__getattribute__
            nn.Module.__setattr__ = usual  # type: ignore[method-assign]
            for kind in self._patched:
                del kind.__getattribute__
            self._patched.clear()
            self._notice_changes()

    @contextmanager
    def noting(self, wrote: Callable[[], None]) -> Iterator[None]:
        """Meanwhile `wrote` is called whenever forward sets an attribute of a module."""
        self._noting = wrote
        try:
            yield
        finally:
            self._noting = None

    def _read(self, module: nn.Module, name: str, found: Any) -> None:
        if id(module) not in self._paths or name in _MACHINERY or name.startswith("__"):
            return
        seen = self._seen.setdefault(id(module), {})
        if name in seen or name in self._written.get(id(module), ()):
            return
        if found is MISSING or not callable(found) or name in object.__getattribute__(module, "__dict__"):
            self._note(seen, module, name)
        else:
            self._methods[id(module), name] = getattr(found, "__func__", found)

    def _note(self, seen: dict[str, Any], thing: Any, name: str) -> None:
        seen[name] = OPAQUE  # whatever is read on the way does not come here again
        value = attribute(thing, name)
        if isinstance(getattr(type(thing), name, None), property):
            if id(thing) in self._paths:  # what its getter reads is seen on its own
                self._methods[id(thing), name] = value
            return
        seen[name] = record_attribute(thing, name, self._code.source)
        if is_config(value) or (not isinstance(value, _NO_OBJECTS) and is_own(type(value).__module__)):
            self._hold(value, id(thing), name)

    def _hold(self, config: Any, holder: int, name: str) -> None:
        self._held.setdefault(id(config), (config, []))[1].append((holder, name))
        if hasattr(config, "__dict__"):
            self._saved.setdefault(id(config), (config, dict(vars(config))))
        kind = type(config)
        if kind not in self._patched and not self._watch(kind):
            seen = self._seen.setdefault(id(config), {})
            for field in [field for field in getattr(config, "__dict__", ()) if field not in seen]:
                self._note(seen, config, field)

    def _watch(self, kind: type) -> bool:
        """Whether reads of this class's instances are noticed from now on. If not, all fields count as read."""
        if "__getattribute__" in vars(kind):
            return False
        usual: Callable[[Any, str], Any] = kind.__getattribute__  # type: ignore[assignment]
        reads = self

        def read(config: Any, name: str) -> Any:
            found = usual(config, name)
            if id(config) in reads._held and not name.startswith("__") and not callable(found):
                seen = reads._seen.setdefault(id(config), {})
                if name not in seen:
                    reads._note(seen, config, name)
            return found

        try:
            kind.__getattribute__ = read  # type: ignore[method-assign,assignment]
        except TypeError:  # a class written in C, such as SimpleNamespace
            return False
        self._patched[kind] = usual
        return True

    def _notice_changes(self) -> None:
        """What forward read and then changed; configs are put back, as `Attributes` does with modules."""
        things = {id(module): module for module in self._model.modules()} | {k: c for k, (c, _) in self._held.items()}
        for key, seen in self._seen.items():
            for name, was in seen.items():
                if was is OPAQUE:
                    continue
                raw = attribute(things[key], name)
                now = record_attribute(things[key], name, self._code.source)
                if now is not OPAQUE and not same(was, now):
                    self._changed.setdefault((key, name), Change(things[key], name, raw, was, now))
        self.stored = []
        for key, (config, attributes) in self._saved.items():
            for name, value in vars(config).items():
                if isinstance(value, torch.Tensor) and value is not attributes.get(name):
                    self.stored.append((f"{next(self._at(key))}.{name}", value))
            vars(config).clear()
            vars(config).update(attributes)

    def changes(self) -> TraceChanges:
        """The attributes that forward read and then changed."""
        told = {(id(c.thing), c.name): (next(self._at(key)), c) for (key, _), c in self._changed.items()}
        return TraceChanges({f"{path}.{c.name}".lstrip("."): c for path, c in told.values()})

    def _at(self, key: int) -> Iterator[str]:
        if key in self._paths:
            yield self._paths[key]
        else:
            yield from self._places(key, frozenset())

    def digest(self, settled: bool = True, live: frozenset[str] = frozenset()) -> Digest:
        """What was seen, but for the attributes at the paths `live`. settled: what forward changed stays so from the second call on, and changes nothing else: then
        both values are recorded, otherwise none. Warns of functions whose source cannot be read."""
        modules = {path: self._of(key, settled) for key, path in self._paths.items()}
        for path, module in self._model.named_modules():
            forward = replaced_forward(module)
            if forward is not MISSING:
                modules[path]["forward"] = record(forward, self._code.source)
        objects = {path: self._of(key, settled) for key in self._held for path in self._places(key, frozenset())}
        self._add_methods(modules)
        for path in live:
            above, _, name = path.rpartition(".")
            for reads in (modules.get(above), objects.get(above)):
                if reads is not None:
                    reads.pop(name, None)
        made = make_digest(self._model, modules, dict(sorted(objects.items())), self._code)
        if made.unknown:
            warnings.warn(
                f"the source of {', '.join(map(repr, made.unknown[:5]))} cannot be read: a change of it will not be "
                "noticed; define it in a file",
                UserWarning,
                stacklevel=5,
            )
        return made.digest

    def _add_methods(self, modules: dict[str, dict[str, Any]]) -> None:
        """Methods and getters of the user's own that forward called and that its source does not name: `getattr(self, kind)()`,
        `self.layer.method()`, and what that reads."""
        for kind in {type(module) for module in self._model.modules()}:
            self._code.module_class(kind)
        for (key, name), function in self._methods.items():
            if not self._code.followed(function) and self._code.source(function) is not None:
                modules[self._paths[key]][name] = record(function, self._code.source)

    def _of(self, key: int, settled: bool) -> dict[str, Any]:
        """The reads of a module or config. {"either": …}: what it is before and after the first call of forward."""
        found = {name: value for name, value in sorted(self._seen.get(key, {}).items()) if value is not OPAQUE}
        for name in list(found):
            change = self._changed.get((key, name))
            if change is not None and settled:
                found[name] = {"either": [change.was, change.now]}
            elif change is not None:
                del found[name]
        return found

    def _places(self, key: int, above: frozenset[int]) -> Iterator[str]:
        """The paths of a config, by every attribute that holds it."""
        for holder, name in self._held[key][1]:
            if holder in self._paths:
                yield f"{self._paths[holder]}.{name}".lstrip(".")
            elif holder in self._held and holder not in above:
                yield from (f"{path}.{name}" for path in self._places(holder, above | {key}))


class Hooks:
    """The hooks of a model while it is traced: those of the model itself do not run, for they run around a scheduled
    step too; those of submodules become part of the step, and one that returns nothing would be lost with it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._answered: dict[tuple[str, str, int], bool] = {}

    @contextmanager
    def followed(self) -> Iterator[None]:
        saved: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        try:
            for path, module in self._model.named_modules():
                for key in _KEYS:
                    hooks = vars(module).get(key)
                    if hooks:
                        saved.append((hooks, dict(hooks)))
                        self._prepare(path, key, hooks)
            yield
        finally:
            for hooks, before in saved:
                hooks.clear()
                hooks.update(before)
        self._refuse_lost()

    def _prepare(self, path: str, key: str, hooks: dict[Any, Any]) -> None:
        for number, hook in list(hooks.items()):
            if is_torchs(hook) or is_forwards_own(hook):
                continue
            if not path:
                del hooks[number]
            else:
                hooks[number] = self._follow(
                    (path, hook_name(key.strip("_").removesuffix("_hooks"), hook), number), hook
                )

    def _follow(self, name: tuple[str, str, int], hook: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            found = hook(*args, **kwargs)
            self._answered[name] = self._answered.get(name, False) or found is not None
            return found

        return run

    def _refuse_lost(self) -> None:
        for (path, name, _), answered in self._answered.items():
            if not answered:
                self._refuse(path, name)

    def _refuse(self, path: str, name: str) -> None:
        hint = "remove it while planning and training, or register it on the model itself, whose hooks do run"
        if any(checkpoints(*item) for module in self._model.modules() for item in vars(module).items()):
            hint = CHECKPOINTS
        raise CaptureError(f"the hook {name!r} of a submodule would never be called by a schedule", path, hint=hint)
