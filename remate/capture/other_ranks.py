"""Finds out whether all ranks of a mesh have the same step, by a capture for each of the other ranks.

Some steps differ: a rank looks up only its own rows of a distributed embedding, or takes its own slice of a replicated
tensor. A file of such a step is for one rank.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from msgspec.structs import replace

from remate_runtime.bind import mesh_names
from remate_runtime.flat_step import Graph, Op
from remate_runtime.operator_calls import overload
from remate_runtime.torch_private import distributed as torch_distributed
from remate_runtime.torch_private.operators import schema_of

from ..errors import CaptureError
from .captured import Captured
from .local_tensors import LocalTensors
from .sizes import SizeLog

_MOST = 8  # ranks of a mesh dimension to compare


def of_ranks(captured: Captured, distributed: LocalTensors, as_another: Callable[[], Graph]) -> Captured:
    """Add the ranks to a capture, with this rank's coordinates in mesh dimensions whose ranks differ.

    Args:
        captured: The capture.
        distributed: The DTensors of the model.
        as_another: Captures again, with another rank's coordinates in effect. Dimensions of more than 8 ranks count as
            different.
    """
    described = distributed.described()  # of the first capture
    ranks, own = distributed.ranks(), distributed.coordinate()
    differing = {
        name: own[name]
        for name, count in ranks.items()
        if distributed.uneven() or _differ(captured.graph, name, count, own[name], as_another)
    }
    model = replace(captured.model, ranks=ranks, coordinate=differing, distributed=described)
    return replace(captured, model=model)


def refuse_open_sizes(sizes: SizeLog | None) -> None:
    """Raise CaptureError for a model with DTensors and `dims=`, because the slices depend on the sizes."""
    if sizes is not None:
        hint = "leave out dims=, and plan each size that calls have"
        raise CaptureError("a model with DTensors is planned for one size", hint=hint)


def refuse_draws_on_gpu(graph: Graph) -> None:
    """Raise CaptureError for random operations on CUDA: DTensor advances the generator for other ranks too."""
    drawn = [op.id for op in graph.operations if op.random and _draws(op)] if graph.device == "cuda" else []
    if drawn:
        hint = "switch dropout off, or plan parts that draw nothing"
        message = f"{drawn[0]} draws random numbers in a model with DTensors, for which torch has separate generators"
        raise CaptureError(message, hint=hint)


def _draws(op: Op) -> bool:
    """Whether a random operator draws. Fused attention without dropout does not."""
    names = [argument.name for argument in schema_of(overload(op.op)).arguments]
    if "dropout_p" not in names:
        return True
    at = names.index("dropout_p")
    return bool(op.args[at] if at < len(op.args) else dict(op.kwargs).get("dropout_p", 0.0))


def _differ(graph: Graph, name: str, count: int, own: int, as_another: Callable[[], Graph]) -> bool:
    if count > _MOST:
        return True
    for rank in range(count):
        if rank != own:
            with coordinates({name: rank}), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the first capture
                if as_another() != graph:
                    return True
    return False


@contextmanager
def coordinates(pretended: Mapping[str, int]) -> Generator[None]:
    """Let device meshes report another rank in the `with` block. pretended: its coordinates by mesh dimension."""
    from torch.distributed.device_mesh import DeviceMesh

    kind: Any = DeviceMesh
    place, local = kind.get_coordinate, kind.get_local_rank

    def get_coordinate(mesh: object) -> tuple[int, ...] | None:
        coordinate = place(mesh)
        names = mesh_names(mesh)
        return coordinate and tuple(pretended.get(name, at) for name, at in zip(names, coordinate, strict=True))

    def sym_get_coordinate(mesh: object, index: int) -> int:
        coordinate = get_coordinate(mesh)
        assert coordinate is not None
        return coordinate[index]

    def get_local_rank(mesh: object, mesh_dim: int | str | None = None) -> int:
        names = mesh_names(mesh)
        name = mesh_dim if isinstance(mesh_dim, str) else names[mesh_dim or 0]
        return pretended[name] if name in pretended else local(mesh, mesh_dim)

    patched: dict[str, Any] = {
        "get_coordinate": get_coordinate,
        "_sym_get_coordinate": sym_get_coordinate,
        "get_local_rank": get_local_rank,
    }
    torch_distributed.clear_dtensor_caches()
    try:
        with mock.patch.multiple(kind, **patched):
            yield
    finally:
        torch_distributed.clear_dtensor_caches()
