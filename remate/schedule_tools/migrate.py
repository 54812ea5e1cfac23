"""Reads schedule files of older versions and writes them in the current version.

A migration step is a pure function from the JSON tree of one version to that of the next. It changes the form of the
tree and not its meaning. `upgrade` sets its `version`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from remate_runtime.errors import REPLAN, ScheduleError
from remate_runtime.format import FORMAT, VERSION, Json, Schedule, decode, scan

Tree = dict[str, Any]
Migration = Callable[[Tree], Tree]
STEPS: Mapping[
    int, Migration
] = {}  # version -> step to the next one; complete from the oldest version that is still read


class Migrated(msgspec.Struct, frozen=True):
    """The schedule in the current version, and the version that the file had."""

    schedule: Schedule
    version: int


def migrate(data: bytes) -> Migrated:
    """Read a file of any version up to the current one. Raise ScheduleError, with R005 for a newer version."""
    version = version_of(data)
    if version is None or version >= VERSION:
        return Migrated(decode(data), VERSION)
    return Migrated(decode(json.dumps(upgrade(json.loads(data), STEPS, VERSION))), version)


def version_of(data: bytes) -> int | None:
    """The version that a schedule states; None if the file is not a JSON object with a version."""
    try:
        if scan(data):
            return None
        tree: Json = json.loads(data)
    except (ValueError, RecursionError):
        return None
    version = tree.get("version") if isinstance(tree, dict) and tree.get("format") == FORMAT else None
    return version if type(version) is int and version >= 1 else None


def upgrade(tree: Tree, steps: Mapping[int, Migration], target: int) -> Tree:
    """Apply migration steps until the tree has version `target`. Raise ScheduleError R005 if a step is missing."""
    while (version := tree["version"]) < target:
        if version not in steps:
            hint = f"read it with the last remate that wrote this version, or {REPLAN}"
            raise ScheduleError("R005", f"version {version} is not read any more", "/version", hint)
        tree = {**steps[version](tree), "version": version + 1}
    return tree
