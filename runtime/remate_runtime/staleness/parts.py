"""Digests of files for parts of a model: what they record of each part, under paths of the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace
from torch import nn

from ..format.module_paths import unfold_paths
from ..format.schedule import Digest, ModuleGroup, Schedule
from .digest import Entry, at_index, compare_digest, grouped


def part_digest(digest: Digest, path: str) -> Digest:
    """Return the digest of the module at `path`, with paths relative to it."""
    modules, objects = (tuple(_within(groups, path)) for groups in (digest.modules, digest.objects))
    return replace(digest, modules=modules, objects=objects)


def _within(groups: tuple[ModuleGroup, ...], path: str) -> Iterator[ModuleGroup]:
    for group in groups:
        for index, full in enumerate(unfold_paths(group.at)):
            if full == path or full.startswith(f"{path}."):
                reads: dict[str, Any] = {name: at_index(value, index) for name, value in group.reads.items()}
                yield ModuleGroup(at=(full[len(path) + 1 :],), kind=group.kind, reads=reads, hooks=group.hooks)


def digest_of_parts(parts: Mapping[str, Digest]) -> Digest:
    """Return the digest of a file for parts of a model. `part_digest` is the inverse.

    Args:
        parts: The digest of each part, by path.
    """
    groups_of: list[list[Entry]] = [[], []]
    packages: dict[str, str] = {}
    functions: dict[str, str | None] = {}
    values: dict[str, Any] = {}
    patched: dict[str, Any] = {}
    fields: dict[str, tuple[str, ...]] = {}
    classes: set[str] = set()
    for path, digest in parts.items():
        for entries, groups in zip(groups_of, (digest.modules, digest.objects), strict=True):
            entries += _entries(groups, path)
        packages |= digest.packages
        functions |= digest.functions
        values |= digest.values
        patched |= digest.patched
        classes |= {*digest.classes}
        for name, names in digest.fields.items():
            fields[name] = tuple(sorted({*fields.get(name, ()), *names}))
    modules, objects = (tuple(grouped(entries)) for entries in groups_of)
    return Digest(
        packages=packages,
        functions=functions,
        values=values,
        patched=patched,
        fields=fields,
        classes=tuple(sorted(classes)),
        modules=modules,
        objects=objects,
    )


def _entries(groups: tuple[ModuleGroup, ...], path: str) -> Iterator[Entry]:
    for group in groups:
        for index, inner in enumerate(unfold_paths(group.at)):
            reads = {name: at_index(value, index) for name, value in group.reads.items()}
            yield f"{path}.{inner}".rstrip("."), group.kind, reads, group.hooks


def part_like(model: nn.Module, schedule: Schedule) -> str:
    """Return the path of the file's part whose digest fits a module that is used alone; the first path if none fits."""
    paths = list(unfold_paths(schedule.model.at))
    if schedule.digest is None:
        return paths[0]
    version = schedule.model.torch.partition("+")[0]
    tried: list[Digest] = []
    for path in paths:
        digest = part_digest(schedule.digest, path)
        if digest not in tried:
            tried.append(digest)
            if not compare_digest(digest, version, model).faults:
                return path
    return next(
        (p for p in paths if not compare_digest(part_digest(schedule.digest, p), version, model, deferred=True).faults),
        paths[0],
    )
