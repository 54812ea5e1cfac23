"""Checks fields about ranks: tensors that torch distributes, and collectives. Does not require torch."""

from __future__ import annotations

import re
from collections.abc import Collection

from ..operators.collectives import COLLECTIVES, COMMUNICATION
from ..operators.tables import namespace
from .distributed import Distributed, Sharded
from .json_values import object_at
from .limits import MAX_NAME, MAX_PARAMETERS, MAX_RANKS
from .literals import Faults
from .module_paths import count_paths, unfold_paths
from .schedule import Model, Operation, Schedule
from .signature import escape

_MESH = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_PLACEMENT = re.compile(r"R|S\([0-9]{1,2}\)|P\((?:sum|avg|max|min|product)\)")
_PATH = re.compile(r"(?:[A-Za-z0-9_~-]+|\[[0-9]{1,9}-[0-9]{1,9}\])(?:\.(?:[A-Za-z0-9_~-]+|\[[0-9]{1,9}-[0-9]{1,9}\]))*")


def check_ranks(faults: Faults, model: Model, where: str) -> None:
    """Check the fields `ranks` and `coordinate`."""
    for name, count in model.ranks.items():
        at = f"{where}/ranks/{escape(name)}"
        if not _MESH.fullmatch(name):
            faults.add("R014", f"{name[:80]!r} is no name of a mesh dimension", at, "write letters, digits and _: tp")
        if not 1 <= count <= MAX_RANKS:
            faults.add("R013", f"a mesh dimension has 1 to {MAX_RANKS} ranks", at, "")
    for name, rank in model.coordinate.items():
        if not 0 <= rank < model.ranks.get(name, 0):
            hint = "name a mesh dimension of `ranks`, and a rank below its number of ranks"
            faults.add("R013", f"{name[:80]!r} has no rank {rank}", f"{where}/coordinate/{escape(name)}", hint)


def check_distributed(faults: Faults, layout: Distributed, where: str) -> None:
    """Check distributed tensors as far as no other part of the file is needed."""
    for index, path in enumerate(layout.tensors):
        if len(path) > MAX_NAME:
            faults.add("R073", f"a path of more than {MAX_NAME} characters", f"{where}/tensors/{index}", "")
        elif not _PATH.fullmatch(path) or not count_paths(path):
            hint = "write the name of a parameter or buffer, or layers.[0-3].wq.weight for four"
            faults.add("R014", f"{path[:80]!r} is not a name", f"{where}/tensors/{index}", hint)
    for field in ("placements", "gradient") if layout.gradient else ("placements",):
        placements = getattr(layout, field)
        for index, placement in enumerate(placements):
            if not _PLACEMENT.fullmatch(placement):
                hint = "write R, S(0) or P(sum), as torch does"
                faults.add("R014", f"{placement[:80]!r} is no placement", f"{where}/{field}/{index}", hint)
        if len(placements) != len(layout.mesh):
            hint = "write one for each mesh dimension"
            message = f"{len(placements)} placements for {len(layout.mesh)} mesh dimensions"
            faults.add("R013", message, f"{where}/{field}", hint)


def check_sharded(faults: Faults, sharded: Sharded, where: str) -> None:
    """Check how the parameters are sharded, as far as no other part of the file is needed."""
    if not 2 <= sharded.shards <= MAX_RANKS:
        faults.add("R013", f"a parameter has 2 to {MAX_RANKS} shards", f"{where}/shards", "")
    if sum(map(count_paths, (*sharded.modules, *sharded.kept))) > MAX_PARAMETERS:
        faults.add("R072", f"over {MAX_PARAMETERS} sharded modules", where, "")
        return
    known = {"", *unfold_paths(sharded.modules)}
    for field, paths in (("modules", sharded.modules), ("kept", sharded.kept)):
        for index, path in enumerate(paths):
            at = f"{where}/{field}/{index}"
            if field == "kept" and not path:
                continue
            if len(path) > MAX_NAME or not _PATH.fullmatch(path) or not count_paths(path):
                faults.add("R014", f"{path[:80]!r} is not a path", at, "write layers.0, or layers.[0-3] for four")
            elif not known.issuperset(unfold_paths([path])):
                faults.add("R013", f"{path[:80]!r} is not sharded", at, 'name one of `modules`, or "" for the model')


def check_mesh(faults: Faults, schedule: Schedule) -> None:
    """Check that distributed tensors name mesh dimensions of the file."""
    ranks = schedule.model.ranks
    _check_tensors(faults, schedule.model)
    for index, layout in enumerate(schedule.model.distributed):
        for at, name in enumerate(layout.mesh):
            _known(faults, name, ranks, f"/model/distributed/{index}/mesh/{at}")


def _check_tensors(faults: Faults, model: Model) -> None:
    """Check that distributed tensors are parameters or buffers, each named once."""
    if sum(count_paths(path) for layout in model.distributed for path in layout.tensors) > MAX_PARAMETERS:
        faults.add("R072", f"over {MAX_PARAMETERS} distributed tensors", "/model/distributed", "")
        return
    seen: set[str] = set()
    for index, layout in enumerate(model.distributed):
        for name in unfold_paths(layout.tensors):
            at = f"/model/distributed/{index}/tensors"
            if name not in model.parameters and name not in model.buffers:
                hint = "name one of the file, and of tied ones the name that it uses"
                faults.add("R065", f"{name[:80]!r} is neither parameter nor buffer", at, hint)
            elif name in seen:
                faults.add("R031", f"{name[:80]!r} is distributed twice", at, "delete one")
            seen.add(name)


def check_collective(faults: Faults, operation: Operation, ranks: Collection[str], where: str) -> None:
    """Check that a collective operation names a mesh dimension. ranks: those of the file."""
    if namespace(operation.op) not in COMMUNICATION:
        return
    known = COLLECTIVES.get(operation.op)
    if known is None:
        hint = f"name one of {', '.join(COLLECTIVES)}"
        faults.add("R050", f"{operation.op[:80]!r} is no collective that a file may name", f"{where}/op", hint)
    elif len(operation.args) <= known.group or operation.kwargs:
        hint = "write all its arguments in order; the last is the name of a mesh dimension"
        faults.add("R053", f"{operation.op} lacks its mesh dimension", f"{where}/args", hint)
    else:
        _known(faults, operation.args[known.group], ranks, f"{where}/args/{known.group}")


def _known(faults: Faults, name: object, ranks: Collection[str], where: str) -> None:
    if not isinstance(name, str) or name not in ranks:
        hint = f"name one of `model.ranks`: {', '.join(ranks) or 'there is none'}"
        faults.add("R013", f"{str(name)[:80]!r} is no mesh dimension of the file", where, hint)


def gradient_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Return the shapes of local gradients, by name, for tensors whose gradients have other placements."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layout in model.distributed:
        if layout.gradient:
            shape = list(layout.shape)
            for mesh, placement in zip(layout.mesh, layout.gradient, strict=True):
                if placement.startswith("S") and (dim := int(placement[2:-1])) < len(shape):
                    shape[dim] //= model.ranks[mesh]
            shapes.update(dict.fromkeys(unfold_paths(layout.tensors), tuple(shape)))
    return shapes


def ranks_in(tree: object) -> Collection[str]:
    """Return the mesh dimensions of a decoded file, which may be malformed."""
    return object_at(object_at(tree, "model"), "ranks")
