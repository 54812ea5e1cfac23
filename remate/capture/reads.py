"""Records what forward reads while it is traced: attributes of the model, the user's objects, and hooks.

Recorded are names of instance and class attributes, including absent ones; fields of configs and of objects of the
user's classes; modules whose children forward iterates over. Values are described afterwards, in the state before
forward. Tensors, parameters, buffers, submodules and training flags are not recorded, because the signature has them.
Attributes that forward itself changes are restored and reported by `changes`; a second trace shows if they matter.
"""

from __future__ import annotations

import enum
import inspect
import types
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from remate_runtime.bind import modules_by_path
from remate_runtime.format import Digest
from remate_runtime.staleness import (
    CHILDREN,
    FORWARDS_OWN_FLAG,
    MISSING,
    NOW,
    OPAQUE,
    Code,
    attribute,
    has_fields,
    held_by,
    hook_reads,
    is_own,
    is_own_path,
    make_digest,
    record_attribute,
    replaced_forward,
    same,
)

from .changes import Change, TraceChanges
from .places import frame_above

_MACHINERY = frozenset(
    {*vars(nn.Module()), *vars(nn.Module), *dir(nn.Module), "training", "__dict__", FORWARDS_OWN_FLAG}
)
_GOES_THROUGH_ALL = nn.Module.named_modules.__code__.co_filename  # methods that read the parameters of a whole model
_BY_KEY = {nn.ModuleDict.__getitem__.__code__, nn.ModuleDict.__contains__.__code__}
_METHODS = (types.FunctionType, staticmethod, classmethod, property)


class Reads:
    """Watches one model. `watching()` wraps its forward; `digest()` returns the record.

    Args:
        model: The model.
        classes: Classes of inputs by name (`staleness.input_classes`).
    """

    def __init__(self, model: nn.Module, classes: Mapping[str, type]) -> None:
        self._model, self._classes = model, classes
        modules = modules_by_path(model, each_once=True)
        self._paths = {id(module): path for path, module in modules.items()}
        self._seen: dict[int, dict[str, Any]] = {}  # by module or object: attribute -> its value before
        self._fields: dict[str, set[str]] = {}  # attributes read from objects, by class name
        self._methods: dict[tuple[int, str], Any] = {}
        self._written: dict[int, set[str]] = {}
        self._held: dict[int, tuple[Any, list[tuple[int, str]]]] = {}  # objects, and their holders
        self._kinds: dict[type, None] = dict.fromkeys(classes.values())  # of objects
        self._walks: dict[
            int, tuple[nn.Module, dict[str, set[int]]]
        ] = {}  # by module whose `parameters()` and so on ran
        self._patched: dict[type, Any] = {}
        self._unwatched: set[type] = set()
        self._saved: dict[int, tuple[Any, dict[str, Any]]] = {}  # objects, and their attributes before forward
        self._changed: dict[tuple[int, str], Change] = {}
        self._noting: Callable[[], None] | None = None
        self._watching = False
        self._around = False  # whether backward is watched, too
        self.stored: list[tuple[str, torch.Tensor]] = []  # attributes of configs that forward set to tensors, by path
        self.replaced: list[tuple[str, Any]] = []  # the values of the same attributes before
        self._code = Code(met=self._meet)
        hooks = {path: dict.fromkeys(hook_reads(module), NOW) for path, module in modules.items() if path}
        make_digest(model, hooks, {}, self._code)  # the objects that code reaches

    @contextmanager
    def watching(self) -> Generator[None]:
        """Watch forward. Attribute access of modules is slow in the `with` block."""
        usual = nn.Module.__setattr__
        patched: Any = nn.Module
        reads = self

        def read(module: nn.Module, name: str) -> Any:
            try:
                value = object.__getattribute__(module, name)
            except AttributeError:
                reads._read(module, name, MISSING)
                raise
            reads._read(module, name, value)
            return value

        def write(module: nn.Module, name: str, value: Any) -> None:
            if reads._noting is not None:
                reads._noting()
            if id(module) in reads._paths:
                reads._written.setdefault(id(module), set()).add(name)
            usual(module, name, value)

        self._watch_objects()
        before = vars(nn.Module).get("__getattribute__")
        patched.__getattribute__ = read
        patched.__setattr__ = write
        try:
            yield
        finally:
            _put_back(nn.Module, before)
            patched.__setattr__ = usual
            if not self._around:
                self._unwatch_objects()
            self._notice_changes()

    @contextmanager
    def watching_backward(self) -> Generator[None]:
        """Also record the reads of tensor hooks and of `backward` of Functions."""
        reads = self

        def read(module: nn.Module, name: str) -> Any:
            value = object.__getattribute__(module, name)
            frame = frame_above(1)
            if name not in CHILDREN and is_own(frame.f_globals.get("__name__") or ""):
                reads._read(module, name, value)
            return value

        self._around = True
        self._watch_objects()
        nn.Module.__getattribute__ = read
        try:
            yield
        finally:
            del nn.Module.__getattribute__
            self._around = False
            self._unwatch_objects()

    def _watch_objects(self) -> None:
        self._watching = True
        for kind in self._kinds:
            self._watch(kind)

    def _unwatch_objects(self) -> None:
        for kind in self._patched:
            del kind.__getattribute__
        self._patched.clear()
        self._watching = False

    @contextmanager
    def noting(self, wrote: Callable[[], None]) -> Generator[None]:
        """Call `wrote` whenever forward sets an attribute of a module."""
        self._noting = wrote
        try:
            yield
        finally:
            self._noting = None

    def set_unread(self) -> set[tuple[int, str]]:
        """Return the attributes that forward set without having read them, as ids of modules and names."""
        return {(key, name) for key, names in self._written.items() for name in names - self._seen.get(key, {}).keys()}

    def _read(self, module: nn.Module, name: str, value: Any) -> None:
        if id(module) not in self._paths:
            return
        seen = self._seen.setdefault(id(module), {})
        if name in CHILDREN:
            code = frame_above(2).f_code
            if code in _BY_KEY:
                return
            if code.co_filename == _GOES_THROUGH_ALL and code.co_name != "named_children":
                self._walk(module, name)
                return
            seen[name] = None
        elif name == "__dict__" and is_own_path(frame_above(2).f_code.co_filename):
            for own in [own for own in value if own not in _MACHINERY]:
                self._read(module, own, value[own])
        if name in _MACHINERY or name.startswith("__") or name in seen or name in self._written.get(id(module), ()):
            return
        if value is MISSING or not inspect.isroutine(value) or name in held_by(module):
            self._note(seen, module, name)
        else:
            self._methods[id(module), name] = getattr(value, "__func__", value)

    def _walk(self, module: nn.Module, name: str) -> None:
        """A method such as `parameters()` reads a collection of this module. It counts if the user's code calls it,
        because torch itself iterates over models too."""
        frame, root = frame_above(3), None
        while frame is not None and frame.f_code.co_filename == _GOES_THROUGH_ALL:
            root, frame = frame.f_locals.get("self", root), frame.f_back
        if root is not None and frame is not None and is_own(frame.f_globals.get("__name__") or ""):
            self._walks.setdefault(id(root), (root, {}))[1].setdefault(name, set()).add(id(module))

    def _note_walks(self) -> None:
        """Record the names of submodules and of parameters or buffers, if forward iterated over all of them. An early
        end, as in `next(self.parameters())`, does not reach the submodules of the last module."""
        for root, walked in self._walks.values():
            modules = list(root.modules())
            if all(id(module) in walked.get("_modules", ()) for module in modules):
                for module in modules:
                    self._seen.setdefault(id(module), {}).update(dict.fromkeys(walked))
        self._walks.clear()

    def _note(self, seen: dict[str, Any], obj: object, name: str) -> None:
        seen[name] = OPAQUE  # nested reads do not come here again
        value = attribute(obj, name)
        if isinstance(getattr(type(obj), name, None), property):
            if id(obj) in self._paths:  # the reads of its getter are recorded separately
                self._methods[id(obj), name] = value
            return
        seen[name] = record_attribute(obj, name, self._code)
        if has_fields(value) and not isinstance(value, enum.Enum):
            self._hold(value, (id(obj), name))

    def _meet(self, obj: object) -> None:
        """Record an object that forward reaches."""
        self._hold(obj, None)

    def _hold(self, obj: object, holder: tuple[int, str] | None) -> None:
        places = self._held.setdefault(id(obj), (obj, []))[1]
        if holder is not None and holder not in places:
            places.append(holder)
        held = held_by(obj)
        if held:
            self._saved.setdefault(id(obj), (obj, dict(held)))
        self._kinds.setdefault(type(obj))
        if self._watching:
            self._watch(type(obj))
        if type(obj) in self._unwatched:
            for field in list(held):
                self._field(obj, field)

    def _field(self, obj: object, name: str) -> None:
        """Record the read of an object's attribute."""
        own = name in held_by(obj)
        member = MISSING if own else inspect.getattr_static(type(obj), name, MISSING)
        if name.startswith("__") or isinstance(member, _METHODS):
            return
        self._fields.setdefault(type(obj).__qualname__, set()).add(name)
        seen = self._seen.setdefault(id(obj), {})
        if id(obj) in self._held and name not in seen:
            self._note(seen, obj, name)

    def _watch(self, kind: type) -> None:
        """Watch reads of this class's instances. If that is impossible, all attributes count as read."""
        if kind in self._patched or kind in self._unwatched:
            return
        patched: Any = kind
        usual = patched.__getattribute__
        reads = self

        def read(obj: object, name: str) -> Any:
            if name == "__dict__":
                for field in list(held_by(obj)):
                    reads._field(obj, field)
                return usual(obj, name)
            try:
                return usual(obj, name)
            finally:
                if type(obj) is kind:
                    reads._field(obj, name)

        try:
            if "__getattribute__" in vars(kind):
                raise TypeError
            patched.__getattribute__ = read
            self._patched[kind] = usual
        except TypeError:  # a class written in C, such as SimpleNamespace
            self._unwatched.add(kind)
            for obj, _ in list(self._held.values()):
                for field in list(held_by(obj)) if type(obj) is kind else ():
                    self._field(obj, field)

    def _notice_changes(self) -> None:
        """Collect what forward read and then changed. Restores configs; `Attributes` restores modules."""
        self._note_walks()
        by_id = {id(module): module for module in self._model.modules()} | {k: c for k, (c, _) in self._held.items()}
        for key, seen in self._seen.items():
            for name, was in seen.items():
                if was is OPAQUE:
                    continue
                raw = attribute(by_id[key], name)
                if was is None and name in CHILDREN:
                    continue
                now = record_attribute(by_id[key], name, self._code)
                if now is not OPAQUE and not same(was, now):
                    self._changed.setdefault((key, name), Change(by_id[key], name, raw, was, now))
        self.stored, self.replaced = [], []
        for key, (config, attributes) in self._saved.items():
            held = held_by(config)
            for name, value in held.items():
                if isinstance(value, torch.Tensor) and value is not attributes.get(name):
                    self.stored.append((f"{next(self._at(key))}.{name}", value))
                    self.replaced.append((self.stored[-1][0], attributes.get(name)))
            if list(held) != list(attributes) or any(held[name] is not attributes[name] for name in held):
                held.clear()
                held.update(attributes)

    def changes(self) -> TraceChanges:
        """Return the attributes that forward read and then changed."""
        by_place = {(id(c.obj), c.name): (next(self._at(key)), c) for (key, _), c in self._changed.items()}
        return TraceChanges({f"{path}.{c.name}".lstrip("."): c for path, c in by_place.values()})

    def _at(self, key: int) -> Iterator[str]:
        if key in self._paths:
            yield self._paths[key]
        else:
            yield from self._places(key, frozenset())
            yield type(self._held[key][0]).__qualname__  # of an object that no attribute holds

    def digest(self, settled: bool = True, live: frozenset[str] = frozenset()) -> Digest:
        """Return the record without the attributes at the paths `live`. settled: the changes of the first call stay,
        and change nothing else; then both values are recorded. Warns of functions whose source cannot be read."""
        for key, name in self._changed:
            if key in self._held:
                self._fields.get(type(self._held[key][0]).__qualname__, set()).discard(name)
        modules = {path: self._of(key, settled) for key, path in self._paths.items()}
        for path, module in modules_by_path(self._model, each_once=True).items():
            names = ["forward"] if replaced_forward(module) is not MISSING else []
            names += ["_code"] if isinstance(module, torch.fx.GraphModule) else []
            modules[path] |= dict.fromkeys([*names, *(hook_reads(module) if path else ())], NOW)
        objects = {path: self._of(key, settled) for key in self._held for path in self._places(key, frozenset())}
        self._add_methods(modules)
        for path in live:
            above, _, name = path.rpartition(".")
            for reads in (modules.get(above), objects.get(above)):
                if reads is not None:
                    reads.pop(name, None)
        ordered = dict(sorted(objects.items()))
        written = make_digest(self._model, modules, ordered, Code(self._fields), tuple(self._classes))
        if written.unknown:
            warnings.warn(
                f"the source of {', '.join(map(repr, written.unknown[:5]))} cannot be read: changes of it will not be "
                "noticed; define it in a file",
                UserWarning,
                stacklevel=5,
            )
        return written.digest

    def _add_methods(self, modules: dict[str, dict[str, Any]]) -> None:
        """Methods and getters of the user that forward called without naming them in its source, such as
        `getattr(self, kind)()` and `self.layer.method()`, and what they read."""
        for kind in {type(module) for module in self._model.modules()}:
            self._code.module_class(kind)
        for (key, name), function in self._methods.items():
            if not self._code.followed(function) and self._code.source(function) is not None:
                modules[self._paths[key]][name] = NOW

    def _of(self, key: int, settled: bool) -> dict[str, Any]:
        """The reads of a module or config. {"either": …}: the values before and after the first call of forward."""
        attributes: dict[str, Any] = {n: NOW for n, was in sorted(self._seen.get(key, {}).items()) if was is not OPAQUE}
        for name in list(attributes):
            change = self._changed.get((key, name))
            if change is not None and settled:
                attributes[name] = {"either": [change.was, change.now]}
            elif change is not None:
                del attributes[name]
        return attributes

    def _places(self, key: int, above: frozenset[int]) -> Iterator[str]:
        """The paths of a config, one for every attribute that holds it."""
        for holder, name in self._held[key][1]:
            if holder in self._paths:
                yield f"{self._paths[holder]}.{name}".lstrip(".")
            elif holder in self._held and holder not in above:
                yield from (f"{path}.{name}" for path in self._places(holder, above | {key}))


def values_read(model: nn.Module) -> dict[str, Any]:
    """The globals that a model's code reads, with their present values."""
    code = Code()
    make_digest(model, {}, {}, code)
    return code.values


def _put_back(kind: Any, reading: object) -> None:
    """Restore the attribute access of a class."""
    if reading is None:
        del kind.__getattribute__
    else:
        kind.__getattribute__ = reading
