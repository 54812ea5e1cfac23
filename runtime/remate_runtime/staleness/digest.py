"""The digest of a model: made from what the capture read, and compared with a live model without tracing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ..format.module_paths import fold_paths, unfold_paths
from ..format.schedule import Digest, ModuleGroup
from .attributes import (
    MISSING,
    attribute,
    hook_name,
    hooks_of,
    record_attribute,
    replaced_forward,
)
from .code import Code
from .differences import Differences
from .ownership import is_own, package_version, qualified
from .values import OPAQUE

Entry = tuple[str, str, Mapping[str, Any], tuple[str, ...]]  # path, class, attributes as `Reads` has them, hooks
Reads = Mapping[str, Mapping[str, Any]]  # path -> attribute -> what it was, as `record` writes it


class Made(NamedTuple):
    """A digest, and the functions whose source could not be read."""

    digest: Digest
    unknown: tuple[str, ...]


def make_digest(model: nn.Module, modules: Reads, objects: Reads, code: Code) -> Made:
    """modules, objects: what the capture read, by path; attributes that hold what a digest does not record are left
    out. code: has followed the functions among the values."""
    named = dict(model.named_modules())
    groups = [
        (path, qualified(type(module)), modules.get(path, {}), _hooks(path, module)) for path, module in named.items()
    ]
    held = [(path, qualified(type(at_path(model, path))), reads, ()) for path, reads in objects.items()]
    packages = _follow(model, objects, code)
    digest = Digest(
        packages=packages,
        functions=code.functions,
        values=dict(sorted(code.values.items())),
        modules=tuple(grouped(groups)),
        objects=tuple(grouped(held)),
    )
    return Made(digest, tuple(name for name, made in digest.functions.items() if made is None))


def _hooks(path: str, module: nn.Module) -> tuple[str, ...]:
    """Those of the model itself are left out: they run whenever it is called, by a schedule or not."""
    return tuple(hook_name(kind, hook) for kind, hook in hooks_of(module)) if path else ()


def grouped(entries: list[Entry]) -> Iterator[ModuleGroup]:
    """Modules that are alike in class, names of attributes and hooks, written together."""
    alike: dict[Any, dict[str, Mapping[str, Any]]] = {}
    for path, kind, reads, hooks in entries:
        alike.setdefault((kind, tuple(sorted(reads)), hooks), {})[path] = reads
    for (kind, names, hooks), members in alike.items():
        at = fold_paths(list(members))
        order = list(unfold_paths(at))
        values = {name: [members[path][name] for path in order] for name in names}
        reads = {
            n: v[0] if all(item == v[0] and _types(item) == _types(v[0]) for item in v) else {"each": v}
            for n, v in values.items()
        }
        yield ModuleGroup(at=at, kind=kind, reads=reads, hooks=hooks)


def _follow(model: nn.Module, objects: Reads, code: Code) -> dict[str, str]:
    """Follow the code of every class and hook of the model; the packages that define modules."""
    packages: dict[str, str] = {}
    seen: set[type] = set()
    for path, module in model.named_modules():
        if path:
            for _, hook in hooks_of(module):
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
    return dict(sorted(packages.items()))


def at_path(model: nn.Module, path: str) -> Any:
    """The object that a path of modules and attributes leads to, MISSING if it leads nowhere."""
    found: Any = model
    for part in path.split("."):
        found = attribute(found, part) if found is not MISSING else MISSING
    return found


def compare_digest(recorded: Digest, torch_version: str, model: nn.Module, code: Code) -> Differences:
    """What of a live model is not what the digest says. code: is filled on the way."""
    found = Differences()
    modules = dict(model.named_modules())
    known: set[str] = set()
    for group in recorded.modules:
        for index, path in enumerate(unfold_paths(group.at)):
            known.add(path)
            if path in modules:
                _compare_module(found, group, index, path, modules[path], code)
            else:
                found.module(path, group.kind, "is gone")
    for path, module in modules.items():
        if path not in known:
            found.module(path, qualified(type(module)), "was not there when planned")
    for group in recorded.objects:
        for index, path in enumerate(unfold_paths(group.at)):
            thing = at_path(model, path)
            _compare_class(found, group, path, thing)
            if thing is not MISSING:
                _compare_reads(found, group, index, path, thing, code)
    objects = {path: {} for group in recorded.objects for path in unfold_paths(group.at)}
    packages = _follow(model, objects, code)
    found.packages(
        {**recorded.packages, "torch": torch_version}, {**packages, "torch": torch.__version__.partition("+")[0]}
    )
    found.values(recorded.values, code.values)
    found.functions(recorded.functions, code.functions)
    return found


def _compare_module(
    found: Differences, group: ModuleGroup, index: int, path: str, module: nn.Module, code: Code
) -> None:
    _compare_class(found, group, path, module)
    _compare_reads(found, group, index, path, module, code)
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


def _compare_class(found: Differences, group: ModuleGroup, path: str, thing: Any) -> None:
    kind = "nothing" if thing is MISSING else qualified(type(thing))
    if kind != group.kind:
        found.module(path, group.kind, f"is a {kind} now" if thing is not MISSING else "is gone")


def _compare_reads(found: Differences, group: ModuleGroup, index: int, path: str, thing: Any, code: Code) -> None:
    for name, value in group.reads.items():
        was = at_index(value, index)
        now = record_attribute(thing, name, code.source)
        if not accepts(was, now):
            found.attribute(path, group.kind, name, was, now)


def at_index(value: Any, index: int) -> Any:
    """What a digest says of an attribute at one path of its group."""
    return value["each"][index] if isinstance(value, dict) and "each" in value else value


def accepts(was: Any, now: Any) -> bool:
    """Whether an attribute is what was recorded, or one of the two that were."""
    if isinstance(was, dict) and "either" in was:
        return any(same(item, now) for item in was["either"])
    return same(was, now)


def same(one: Any, other: Any) -> bool:
    """Equal as values that were written down; 1, 1.0 and true are three."""
    if one is OPAQUE or other is OPAQUE:
        return one is other
    return one == other and _types(one) == _types(other)


def _types(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _types(item) for key, item in value.items()}
    return [_types(item) for item in value] if isinstance(value, list) else type(value)
