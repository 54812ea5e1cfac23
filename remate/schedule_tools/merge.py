"""Three-way merge of schedules. Plans, statements, instances and notes merge by meaning; figures are computed again.

Steps are never mixed: at most one side may have a new step.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

import msgspec
from msgspec.structs import replace

from remate_runtime.errors import RemateError, ScheduleError
from remate_runtime.format import Schedule, check_fingerprint, decode, encode, fingerprint

from .figures import FIGURES, proven_of, refreshed
from .merge_tree import Path, Side, TreeMerge

_MAKER = ("strategy", "solver", "stopped_by", "cost", "parts")  # taken from one side as a whole
_DERIVED = (*FIGURES, *_MAKER, "lower_bound", "gap", "profile")


class CannotMergeError(RemateError):
    """Schedules cannot be merged by meaning. The text says why, and what to do."""


class Merged(msgspec.Struct, frozen=True):
    """text: canonical text, with conflict markers if there are conflicts. conflicts: JSON pointers, without numbers, of
    what both sides changed differently. remarks: notes for the user."""

    text: bytes
    conflicts: tuple[str, ...]
    remarks: tuple[str, ...]


def merge(base: Schedule, ours: Schedule, theirs: Schedule, names: tuple[str, str] = ("ours", "theirs")) -> Merged:
    """Merge the changes of both sides to `base`. names: of the sides, for conflict markers. Raises CannotMergeError."""
    steps = [fingerprint(side) for side in (base, ours, theirs)]
    if len(set(steps)) == 3 or (steps[1] != steps[2] and steps[0] not in steps[1:]):
        raise CannotMergeError(
            "both sides have a new step\n  hint: take one side, and `remate replan` or `remate rebind` it to "
            "the merged model"
        )
    schedule, conflicts = _merged(base, ours, theirs, "ours")
    merged = _refreshed(schedule)
    if not conflicts:
        return Merged(encode(merged.schedule), (), merged.remarks)
    other, _ = _merged(base, ours, theirs, "theirs")
    derived = {name: getattr(merged.schedule.solve, name) for name in _DERIVED}
    other = replace(other, solve=replace(other.solve, **derived))
    text = _marked(encode(merged.schedule).decode(), encode(other).decode(), names)
    places = tuple("/" + "/".join(path) for path in dict.fromkeys(conflicts))
    return Merged(text.encode(), places, merged.remarks)


def _refreshed(schedule: Schedule) -> Any:
    try:
        check_fingerprint(schedule)
        return refreshed(schedule)
    except ScheduleError as error:
        first = str(error).partition("\n")[0]
        raise CannotMergeError(
            f"what both sides changed does not fit together: {first}\n  hint: take one side, and `remate rebind` it"
        ) from None


def _merged(base: Schedule, ours: Schedule, theirs: Schedule, prefer: Side) -> tuple[Schedule, list[Path]]:
    trees = [json.loads(encode(side)) for side in (base, ours, theirs)]
    solves = [tree.pop("solve") for tree in trees]
    sides = copy.deepcopy(trees[1:])
    measured = _measured(trees, theirs_replanned=fingerprint(base) != fingerprint(theirs))
    for tree in trees:
        if tree is not trees[measured]:
            _take_costs(tree, trees[measured])
    merging = TreeMerge(prefer, _keys)
    tree = merging.merged(trees[0], trees[1], trees[2])
    mixed = tree not in sides
    tree["solve"] = _solve(solves[0], solves[1], solves[2], solves[measured], merging, mixed)
    try:
        merged = decode(json.dumps(tree))
    except ScheduleError as error:
        first = str(error).partition("\n")[0]
        raise CannotMergeError(f"what both sides changed does not fit together: {first}") from None
    return _bounded(merged, ours, theirs), merging.conflicts


def _keys(path: Path, items: list[Any]) -> list[Any] | None:
    """Keys for the items of a list. Statements are keyed by their point, pages by their values, and equal keys are
    numbered."""
    if not all(isinstance(item, dict) for item in items):
        return None
    if path == ("statements",) or path[2:3] == ("plans",):
        seen: Counter[str] = Counter()
        keys: list[tuple[str, int]] = []
        for item in items:
            point = item["before"] if "before" in item else f"page {json.dumps(item.get('page'))}"
            keys.append((point, seen[point]))
            seen[point] += 1
        return keys
    for key in ("id", "at"):
        if all(key in item for item in items):
            return [json.dumps(item[key]) for item in items]
    return None


def _solve(base: Any, ours: Any, theirs: Any, measured: Any, merging: TreeMerge, mixed: bool) -> Any:
    """Merge the solve records without their figures. Solver and stopping reason come from one side, or from neither if
    plans are mixed. measured: the record of the side whose costs are used."""
    sides = base, ours, theirs
    requested = [{k: v for k, v in side.items() if k not in _DERIVED} for side in sides]
    merged = merging.merged(requested[0], requested[1], requested[2], ("solve",))
    makers = [{k: side[k] for k in _MAKER if k in side} for side in sides]
    merged = {
        **(makers[2] if makers[1] == makers[0] else makers[1]),
        **merged,
        **{k: ours[k] for k in FIGURES},
        "profile": measured.get("profile", ""),
    }
    if mixed and merged.get("compiled"):
        merged["compiled"] = {"budget": merged["compiled"]["budget"]}  # nobody has compiled this plan
    return {**merged, "stopped_by": "edited", "parts": []} if mixed else merged


def _bounded(merged: Schedule, ours: Schedule, theirs: Schedule) -> Schedule:
    """Add the best bound proven for this step, these costs, and this budget or a larger one."""
    costs, step = _costs_of(merged), fingerprint(merged)
    bounds = [
        side.solve.lower_bound
        for side in (ours, theirs)
        if side.solve.lower_bound is not None
        and side.solve.budget >= merged.solve.budget
        and side.solve.gradients == merged.solve.gradients
        and (proven_of(side.solve.settings), side.lanes) == (proven_of(merged.solve.settings), merged.lanes)
        and fingerprint(side) == step
        and _costs_of(side) == costs
    ]
    bound = max(bounds, default=None)
    return replace(merged, solve=replace(merged.solve, lower_bound=bound, gap=None if bound is None else 0.0))


def _costs_of(schedule: Schedule) -> tuple[Any, Any]:
    blocks = schedule.blocks.items()
    workspaces = {(name, op.id): op.workspace for name, b in blocks for op in (*b.forward, *b.backward) if op.workspace}
    return (schedule.costs, schedule.tile_workspaces), workspaces


def _operations(tree: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    for name, block in tree["blocks"].items():
        for op in (*block.get("forward", ()), *block.get("backward", ())):
            yield (name, op["id"]), op


def _costs(tree: Any) -> tuple[Any, Any]:
    costs = {name: tree[name] for name in ("costs", "tile_workspaces") if tree.get(name)}
    return costs, {key: op["workspace"] for key, op in _operations(tree) if op.get("workspace")}


def _measured(trees: list[Any], theirs_replanned: bool) -> int:
    """The side whose costs are used; costs are never mixed. If both sides changed them, the side with the new step
    wins."""
    base, ours, theirs = map(_costs, trees)
    return 2 if ours == base or (theirs != base and theirs_replanned) else 1


def _take_costs(tree: Any, source: Any) -> None:
    costs, workspaces = _costs(source)
    for name in ("costs", "tile_workspaces"):
        tree.pop(name, None)
    tree.update(costs)
    known = {key for key, _ in _operations(source)}
    for key, op in _operations(tree):
        if key in known:
            op.pop("workspace", None)
            if key in workspaces:
                op["workspace"] = workspaces[key]


def _marked(ours: str, theirs: str, names: tuple[str, str]) -> str:
    """One text with conflict markers around the lines that differ."""
    a, b = ours.splitlines(), theirs.splitlines()
    merged: list[str] = []
    for kind, start, stop, other, end in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal":
            merged += a[start:stop]
        else:
            merged += [f"<<<<<<< {names[0]}", *a[start:stop], "=======", *b[other:end], f">>>>>>> {names[1]}"]
    return "\n".join(merged) + "\n"
