"""The digest of a model: made from what the capture read, and compared with a live model without tracing it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ..format.module_paths import fold_paths, unfold_paths
from ..format.schedule import Digest, ModuleGroup
from .attributes import hook_name, hooks_of, only_looks, record_attribute, replaced_forward
from .code import NO_FIELDS, Code
from .differences import Differences
from .moved import moved
from .ownership import is_own, package_version, qualified
from .values import ABSENT, MISSING, OPAQUE, accepts, attribute, held_by, hiding, same

Entry = tuple[str, str, Mapping[str, Any], tuple[str, ...]]  # path, class, attributes as `Reads` has them, hooks
NOW: Any = object()  # of an attribute: what it is now
Names = Mapping[str, Mapping[str, Any]]  # path -> attribute -> NOW, or what it may be, as `record` writes it


class Made(NamedTuple):
    """A digest, and the functions whose source could not be read."""

    digest: Digest
    unknown: tuple[str, ...]


def make_digest(model: nn.Module, modules: Names, objects: Names, code: Code) -> Made:
    """modules, objects: the attributes that the capture saw read, by path; those that hold what a digest does not
    record are left out. An attribute that is not only what it is now comes with what it may be. code: knows the fields
    of objects."""
    named = dict(model.named_modules())
    things = named | {path: at_path(model, path) for path in objects}
    reads = {path: _reads(things[path], names, code) for path, names in {**modules, **objects}.items()}
    groups = [
        (path, qualified(type(module)), reads.get(path, {}), _hooks(path, module)) for path, module in named.items()
    ]
    held = [(path, qualified(type(things[path])), reads[path], ()) for path in objects]
    packages = _follow(model, objects, code, _words(reads.values()))
    fields = {
        name: tuple(sorted(code.known_fields[name])) for name in sorted(code.described & code.known_fields.keys())
    }
    digest = Digest(
        packages=packages,
        functions=code.functions,
        values=dict(sorted(code.values.items())),
        patched=dict(sorted(code.library.patched.items())),
        fields={name: names for name, names in fields.items() if names},
        modules=tuple(grouped(groups)),
        objects=tuple(grouped(held)),
    )
    return Made(digest, tuple(name for name, made in digest.functions.items() if made is None))


def _reads(thing: Any, names: Mapping[str, Any], code: Code) -> dict[str, Any]:
    found = {name: record_attribute(thing, name, code) if was is NOW else was for name, was in sorted(names.items())}
    return {name: value for name, value in found.items() if value is not OPAQUE}


def _words(reads: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The texts among what forward reads: names of what packages keep in mappings."""
    found = (item for values in reads for value in values.values() for item in _variants(value))
    return frozenset(item for item in found if isinstance(item, str))


def _variants(value: Any) -> Iterable[Any]:
    if not isinstance(value, dict):
        return (value,)
    return value.get("each") or value.get("either") or ()


def _hooks(path: str, module: nn.Module) -> tuple[str, ...]:
    """Those of the model itself are left out: they run whenever it is called, by a schedule or not; and those that only
    look."""
    return tuple(hook_name(kind, hook) for kind, hook in hooks_of(module) if not only_looks(kind, hook)) if path else ()


def grouped(entries: Sequence[Entry]) -> Iterator[ModuleGroup]:
    """Modules that are alike in class, names of attributes and hooks, written together."""
    alike: dict[Any, dict[str, Mapping[str, Any]]] = {}
    for path, kind, reads, hooks in entries:
        alike.setdefault((kind, tuple(sorted(reads)), hooks), {})[path] = reads
    for (kind, names, hooks), members in alike.items():
        at = fold_paths(list(members))
        order = list(unfold_paths(at))
        values = {name: [members[path][name] for path in order] for name in names}
        reads = {n: v[0] if all(_alike(item, v[0]) for item in v) else {"each": v} for n, v in values.items()}
        yield ModuleGroup(at=at, kind=kind, reads=reads, hooks=hooks)


def _follow(model: nn.Module, objects: Collection[str], code: Code, words: Collection[str]) -> dict[str, str]:
    """Follow the code of every class and hook of the model; the packages that define modules. words: that forward
    reads."""
    packages: dict[str, str] = {}
    seen: set[type] = set()
    for path, module in model.named_modules():
        if path:
            for kind, hook in hooks_of(module):
                if not only_looks(kind, hook):
                    code.source(hook)
        kind = type(module)
        if kind not in seen:
            seen.add(kind)
            code.module_class(kind)
            forward = getattr(kind.forward, "__module__", None)
            found = [package_version(name) for name in (kind.__module__, forward) if isinstance(name, str)]
            packages.update(entry for entry in found if entry)
    for path in objects:
        thing = at_path(model, path)
        if thing is not MISSING and is_own(type(thing).__module__):
            code.instance(thing)
    code.library.look_up(words)
    return dict(sorted(packages.items()))


def at_path(model: nn.Module, path: str) -> Any:
    """The object that a path of modules and attributes leads to, MISSING if it leads nowhere."""
    found: Any = model
    for part in path.split("."):
        found = attribute(found, part) if found is not MISSING else MISSING
    return found


def compare_digest(
    recorded: Digest,
    torch_version: str,
    model: nn.Module,
    code: Code | None = None,
    deferred: bool = False,
    when: str = " when planned",
) -> Differences:
    """What of a live model is not what the digest says. code: is filled on the way. deferred: attributes that a
    training loop may still set are compared later. when: said of what the digest has."""
    code = code_of(recorded) if code is None else code
    modules = dict(model.named_modules())
    paths = [path for group in recorded.objects for path in unfold_paths(group.at)]
    packages = _follow(model, paths, code, _words(group.reads for group in (*recorded.modules, *recorded.objects)))
    recorded = moved(recorded, modules, code.functions)
    found = Differences(when)
    known: set[str] = set()
    for group in recorded.modules:
        for index, path in enumerate(unfold_paths(group.at)):
            known.add(path)
            if path in modules:
                _compare_module(found, group, index, path, modules[path], code, deferred and recorded.at_call)
            else:
                found.module(path, group.kind, "is gone")
    counted = {path for group in recorded.modules if "_modules" in group.reads for path in unfold_paths(group.at)}
    for path, module in modules.items():
        if path not in known and (path.rpartition(".")[0] in counted or not _is_unused(path, modules)):
            found.module(path, qualified(type(module)), "was not there when planned")
    for group in recorded.objects:
        for index, path in enumerate(unfold_paths(group.at)):
            thing = at_path(model, path)
            _compare_class(found, group, path, thing)
            if thing is not MISSING:
                _compare_reads(found, group, index, path, thing, code, deferred and recorded.at_call)
                _compare_hidden(found, group, path, hiding(thing))
    found.packages(
        {**recorded.packages, "torch": torch_version}, {**packages, "torch": torch.__version__.partition("+")[0]}
    )
    found.values(recorded.values, code.values)
    found.patched(recorded.patched, code.library.patched)
    found.functions(recorded.functions, code.functions)
    return found


def code_of(digest: Digest | None) -> Code:
    """What follows the code of a live model, to be compared with a digest."""
    return Code(NO_FIELDS if digest is None else digest.fields)


def _is_unused(path: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a submodule that was not planned takes no part: nothing that is trained, and no hook."""
    module = modules[path]
    return not any(parameter.requires_grad for parameter in module.parameters()) and not any(hooks_of(module))


def _compare_module(
    found: Differences, group: ModuleGroup, index: int, path: str, module: nn.Module, code: Code, deferred: bool
) -> None:
    _compare_class(found, group, path, module)
    _compare_reads(found, group, index, path, module, code, deferred)
    _compare_hidden(found, group, path, [n for n in sorted(code.members.get(type(module), ())) if n in held_by(module)])
    forward = replaced_forward(module)
    if forward is not MISSING and "forward" not in group.reads:
        found.module(path, group.kind, f"its forward was replaced by {qualified(forward)!r}", wrapped=True)
    if path:
        names, hooks = list(group.hooks), list(_hooks(path, module))
        for hook in dict.fromkeys([*names, *hooks]):
            if hooks.count(hook) > names.count(hook):
                found.module(
                    path, group.kind, f"the hook {hook!r} was not there when planned; a schedule would not call it"
                )
            elif hooks.count(hook) < names.count(hook):
                found.module(path, group.kind, f"the hook {hook!r} was there when planned, and is gone")


def _compare_hidden(found: Differences, group: ModuleGroup, path: str, names: Iterable[str]) -> None:
    for name in names:
        if name not in group.reads:
            found.module(path, group.kind, f"its attribute {name} hides the method {name}, and did not when planned")


def _compare_class(found: Differences, group: ModuleGroup, path: str, thing: Any) -> None:
    kind = "nothing" if thing is MISSING else qualified(_own_class(type(thing)))
    if kind != group.kind:
        found.module(path, group.kind, f"is a {kind} now" if thing is not MISSING else "is gone")


def _own_class(kind: type) -> type:
    """The class of a module, without the class that torch's `fully_shard` puts before it: that changes no forward."""
    sharded = kind.__module__.startswith("torch.distributed.") and "forward" not in vars(kind)
    return next((base for base in kind.__mro__[1:] if "forward" in vars(base)), kind) if sharded else kind


def _compare_reads(
    found: Differences, group: ModuleGroup, index: int, path: str, thing: Any, code: Code, deferred: bool
) -> None:
    for name, value in group.reads.items():
        was = at_index(value, index)
        now = record_attribute(thing, name, code)
        if not accepts(was, now) and not (deferred and _is_setting(was) and _is_setting(now)):
            found.attribute(path, group.kind, name, was, now)


def _is_setting(value: Any) -> bool:
    """What a loop sets, and recording a call of it puts down: numbers, flags and texts."""
    return not isinstance(value, dict | list) or value == ABSENT


def at_index(value: Any, index: int) -> Any:
    """What a digest says of an attribute at one path of its group."""
    return value["each"][index] if isinstance(value, dict) and "each" in value else value


def _alike(one: Any, other: Any) -> bool:
    """Whether two descriptions are written as one."""
    return same(one, other) and repr(one) == repr(other)
