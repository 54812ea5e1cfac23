"""The digest of a model: built from what the capture read, and compared with a live model without tracing it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ..bind.modules import modules_by_path
from ..format.json_values import is_object
from ..format.module_paths import fold_paths, unfold_paths
from ..format.schedule import Digest, ModuleGroup
from .attributes import hook_name, hooks_of, only_looks, record_attribute, replaced_forward
from .classes_of_inputs import loaded_class
from .code import NO_FIELDS, Code
from .differences import Differences
from .moved import moved
from .ownership import is_own, package_version, qualified
from .values import ABSENT, MISSING, OPAQUE, accepts, attribute, held_by, hiding, same

Entry = tuple[str, str, Mapping[str, Any], tuple[str, ...]]  # path, class, attributes as `Reads` has them, hooks
NOW: Any = object()  # marks an attribute whose current value is to be recorded
Names = Mapping[str, Mapping[str, Any]]  # path -> attribute -> NOW, or its possible values as `record` writes them


class Made(NamedTuple):
    """A digest, and the functions whose source could not be read."""

    digest: Digest
    unknown: tuple[str, ...]


def make_digest(model: nn.Module, modules: Names, objects: Names, code: Code, classes: Sequence[str] = ()) -> Made:
    """Build the digest of a model.

    Args:
        model: The live model.
        modules: Attributes of modules that the capture read, by path. NOW records the current value; other entries are
            possible values. Attributes that a digest does not record are left out.
        objects: The same for objects.
        code: The collected code; it knows the fields of objects.
        classes: Names of the user's classes of inputs, as `input_classes` returns them.
    """
    named = modules_by_path(model, each_once=True)
    by_path: dict[str, object] = {**named, **{path: at_path(model, path) for path in objects}}
    reads = {path: _reads(by_path[path], names, code) for path, names in {**modules, **objects}.items()}
    groups = [
        (path, qualified(type(module)), reads.get(path, {}), _hooks(path, module)) for path, module in named.items()
    ]
    described = [(path, qualified(type(by_path[path])), reads[path], ()) for path in objects]
    packages = _follow(model, objects, code, _words(reads.values()), classes)
    fields = {
        name: tuple(sorted(code.known_fields[name])) for name in sorted(code.described & code.known_fields.keys())
    }
    digest = Digest(
        packages=packages,
        functions=code.functions,
        values=dict(sorted(code.values.items())),
        patched=dict(sorted(code.library.patched.items())),
        fields={name: names for name, names in fields.items() if names},
        classes=tuple(classes),
        modules=tuple(grouped(groups)),
        objects=tuple(grouped(described)),
    )
    return Made(digest, tuple(name for name, digest_of_source in digest.functions.items() if digest_of_source is None))


def _reads(obj: object, names: Mapping[str, object], code: Code) -> dict[str, Any]:
    values = {name: record_attribute(obj, name, code) if was is NOW else was for name, was in sorted(names.items())}
    return {name: value for name, value in values.items() if value is not OPAQUE}


def _words(reads: Iterable[Mapping[str, object]]) -> frozenset[str]:
    """Return the strings among what forward reads. Packages may keep functions under these names in mappings."""
    variants = (item for values in reads for value in values.values() for item in _variants(value))
    return frozenset(item for item in variants if isinstance(item, str))


def _variants(value: object) -> Iterable[Any]:
    if not is_object(value):
        return (value,)
    return value.get("each") or value.get("either") or ()


def _hooks(path: str, module: nn.Module) -> tuple[str, ...]:
    """Return the names of a module's hooks without observers; none for the model itself, whose hooks run anyway."""
    return tuple(hook_name(kind, hook) for kind, hook in hooks_of(module) if not only_looks(kind, hook)) if path else ()


def grouped(entries: Sequence[Entry]) -> Iterator[ModuleGroup]:
    """Yield groups of modules with the same class, attribute names and hooks."""
    alike: dict[Any, dict[str, Mapping[str, Any]]] = {}
    for path, kind, reads, hooks in entries:
        alike.setdefault((kind, tuple(sorted(reads)), hooks), {})[path] = reads
    for (kind, names, hooks), members in alike.items():
        at = fold_paths(list(members))
        order = list(unfold_paths(at))
        values = {name: [members[path][name] for path in order] for name in names}
        reads = {n: v[0] if all(_alike(item, v[0]) for item in v) else {"each": v} for n, v in values.items()}
        yield ModuleGroup(at=at, kind=kind, reads=reads, hooks=hooks)


def _follow(
    model: nn.Module, objects: Collection[str], code: Code, words: Collection[str], classes: Iterable[str]
) -> dict[str, str]:
    """Follow the code of all classes and hooks of the model, and return the versions of packages that define modules.

    Args:
        model: The live model.
        objects: Paths of recorded objects.
        code: Collects the code.
        words: Strings that forward reads.
        classes: Names of classes of inputs.
    """
    packages: dict[str, str] = {}
    seen: set[type] = set()
    for path, module in modules_by_path(model, each_once=True).items():
        if path:
            for kind, hook in hooks_of(module):
                if not only_looks(kind, hook):
                    code.source(hook)
        kind = type(module)
        if kind not in seen:
            seen.add(kind)
            code.module_class(kind)
            forward = getattr(kind.forward, "__module__", None)
            versions = [package_version(name) for name in (kind.__module__, forward) if isinstance(name, str)]
            packages.update(entry for entry in versions if entry)
    for path in objects:
        value = at_path(model, path)
        if value is not MISSING and is_own(type(value).__module__):
            code.instance(value)
    for kind in filter(None, (loaded_class(name, model) for name in classes)):
        code.input_class(kind)
    code.library.look_up(words)
    code.library.look_at_tensors()
    return dict(sorted(packages.items()))


def at_path(model: nn.Module, path: str) -> Any:
    """Return the object at a path of modules and attributes; MISSING if the path leads nowhere."""
    value: Any = model
    for part in path.split("."):
        value = attribute(value, part) if value is not MISSING else MISSING
    return value


def compare_digest(
    recorded: Digest,
    torch_version: str,
    model: nn.Module,
    code: Code | None = None,
    deferred: bool = False,
    when: str = " when planned",
) -> Differences:
    """Return the differences between a live model and a digest.

    Args:
        recorded: The digest.
        torch_version: The torch that the file was planned with.
        model: The live model.
        code: Collects the code of the live model; None for a new collection.
        deferred: Compare attributes that a training loop may still set at the first call instead.
        when: Appended to texts about the digest's side.
    """
    code = code_of(recorded) if code is None else code
    modules = modules_by_path(model, each_once=True)
    paths = [path for group in recorded.objects for path in unfold_paths(group.at)]
    words = _words(group.reads for group in (*recorded.modules, *recorded.objects))
    packages = _follow(model, paths, code, words, recorded.classes)
    recorded = moved(recorded, modules, code.functions)
    differences = Differences(when)
    known: set[str] = set()
    for group in recorded.modules:
        for index, path in enumerate(unfold_paths(group.at)):
            known.add(path)
            if path in modules:
                _compare_module(differences, group, index, path, modules[path], code, deferred and recorded.at_call)
            else:
                differences.module(path, group.kind, "is gone")
    counted = {path for group in recorded.modules if "_modules" in group.reads for path in unfold_paths(group.at)}
    for path, module in modules.items():
        if path not in known and (path.rpartition(".")[0] in counted or not _is_unused(path, modules)):
            differences.module(path, qualified(type(module)), "was not there when planned")
    for group in recorded.objects:
        for index, path in enumerate(unfold_paths(group.at)):
            value = at_path(model, path)
            _compare_class(differences, group, path, value)
            if value is not MISSING:
                _compare_reads(differences, group, index, path, value, code, deferred and recorded.at_call)
                _compare_hidden(differences, group, path, hiding(value))
    differences.packages(
        {**recorded.packages, "torch": torch_version}, {**packages, "torch": torch.__version__.partition("+")[0]}
    )
    differences.values(recorded.values, code.values)
    differences.patched(recorded.patched, code.library.patched)
    differences.functions(recorded.functions, code.functions)
    return differences


def code_of(digest: Digest | None) -> Code:
    """Return a collector for a live model's code that is to be compared with a digest."""
    return Code(NO_FIELDS if digest is None else digest.fields)


def _is_unused(path: str, modules: Mapping[str, nn.Module]) -> bool:
    """Return whether an unplanned submodule takes no part: it has nothing to train and no hook."""
    module = modules[path]
    return not any(parameter.requires_grad for parameter in module.parameters()) and not any(hooks_of(module))


def _compare_module(
    differences: Differences, group: ModuleGroup, index: int, path: str, module: nn.Module, code: Code, deferred: bool
) -> None:
    _compare_class(differences, group, path, module)
    _compare_reads(differences, group, index, path, module, code, deferred)
    _compare_hidden(
        differences, group, path, [n for n in sorted(code.members.get(type(module), ())) if n in held_by(module)]
    )
    forward = replaced_forward(module)
    if forward is not MISSING and "forward" not in group.reads:
        differences.module(path, group.kind, f"its forward was replaced by {qualified(forward)!r}", wrapped=True)
    if path:
        names, hooks = list(group.hooks), list(_hooks(path, module))
        for hook in dict.fromkeys([*names, *hooks]):
            if hooks.count(hook) > names.count(hook):
                differences.module(
                    path, group.kind, f"the hook {hook!r} was not there when planned; a schedule would not call it"
                )
            elif hooks.count(hook) < names.count(hook):
                differences.module(path, group.kind, f"the hook {hook!r} was there when planned, and is gone")


def _compare_hidden(differences: Differences, group: ModuleGroup, path: str, names: Iterable[str]) -> None:
    for name in names:
        if name not in group.reads:
            differences.module(
                path, group.kind, f"its attribute {name} hides the method {name}, and did not when planned"
            )


def _compare_class(differences: Differences, group: ModuleGroup, path: str, obj: object) -> None:
    kind = "nothing" if obj is MISSING else qualified(own_class(type(obj)))
    if kind != group.kind:
        differences.module(path, group.kind, f"is a {kind} now" if obj is not MISSING else "is gone")


def own_class(kind: type) -> type:
    """Return the class of a module without the class that `fully_shard` inserts, which changes no forward."""
    sharded = kind.__module__.startswith("torch.distributed.") and "forward" not in vars(kind)
    return next((base for base in kind.__mro__[1:] if "forward" in vars(base)), kind) if sharded else kind


def _compare_reads(
    differences: Differences, group: ModuleGroup, index: int, path: str, obj: object, code: Code, deferred: bool
) -> None:
    for name, value in group.reads.items():
        was = at_index(value, index)
        now = record_attribute(obj, name, code)
        if not accepts(was, now) and not (deferred and _is_setting(was) and _is_setting(now)):
            differences.attribute(path, group.kind, name, was, now)


def _is_setting(value: object) -> bool:
    """Return whether a value is a number, flag or text, which a training loop may set."""
    return not isinstance(value, dict | list) or value == ABSENT


def at_index(value: object, index: int) -> Any:
    """Return what a digest records for an attribute at one path of its group."""
    return value["each"][index] if is_object(value) and "each" in value else value


def _alike(first: object, second: object) -> bool:
    """Return whether two descriptions are written identically."""
    return same(first, second) and repr(first) == repr(second)
