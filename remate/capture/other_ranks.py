"""Whether all ranks of a mesh do the same step: it is captured again as each of the other ranks would.

Some steps differ from rank to rank: an embedding whose rows are distributed looks for its own rows, a tensor that all
ranks have is cut at the rank's place. A file of such a step is for one rank.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from msgspec.structs import replace

from remate_runtime.bind import mesh_names
from remate_runtime.flat_step import Graph
from remate_runtime.torch_private import distributed as torch_distributed

from ..errors import CaptureError
from .captured import Captured
from .local_tensors import LocalTensors
from .sizes import SizeLog

_MOST = 8  # ranks of a mesh dimension that are compared


def of_ranks(found: Captured, distributed: LocalTensors, as_another: Callable[[], Graph]) -> Captured:
    """What was captured, and what a file says of ranks; in `model.coordinate` which rank the step is of, in the mesh
    dimensions whose ranks differ.

    as_another: captures again, with another rank's coordinates in effect. Dimensions of more than 8 ranks are taken to
    differ.
    """
    described = distributed.described()  # of the first capture
    ranks, own = distributed.ranks(), distributed.coordinate()
    differing = {
        name: own[name]
        for name, count in ranks.items()
        if distributed.uneven() or _differ(found.graph, name, count, own[name], as_another)
    }
    model = replace(found.model, ranks=ranks, coordinate=differing, distributed=described)
    return replace(found, model=model)


def refuse_open_sizes(sizes: SizeLog | None) -> None:
    """Raise CaptureError where sizes of a model with DTensors are left open: how it is cut would follow from them."""
    if sizes is not None:
        hint = "leave out dims=, and plan each size that calls have"
        raise CaptureError("a model with DTensors is planned for one size", hint=hint)


def refuse_draws_on_gpu(graph: Graph) -> None:
    """Raise CaptureError for a step on CUDA that draws: DTensor moves the generator by what the other ranks draw."""
    drawn = [op.id for op in graph.operations if op.random] if graph.device == "cuda" else []
    if drawn:
        hint = "switch dropout off, or plan parts that draw nothing"
        message = f"{drawn[0]} draws random numbers in a model with DTensors, whose generators torch keeps apart"
        raise CaptureError(message, hint=hint)


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
def coordinates(pretended: Mapping[str, int]) -> Iterator[None]:
    """Meanwhile device meshes say that this is another rank. pretended: its place by mesh dimension."""
    from torch.distributed.device_mesh import DeviceMesh

    kind: Any = DeviceMesh
    place, local = kind.get_coordinate, kind.get_local_rank

    def get_coordinate(mesh: Any) -> tuple[int, ...] | None:
        found = place(mesh)
        names = mesh_names(mesh)
        return found and tuple(pretended.get(name, at) for name, at in zip(names, found, strict=True))

    def sym_get_coordinate(mesh: Any, index: int) -> int:
        found = get_coordinate(mesh)
        assert found is not None
        return found[index]

    def get_local_rank(mesh: Any, mesh_dim: int | str | None = None) -> int:
        names = mesh_names(mesh)
        name = mesh_dim if isinstance(mesh_dim, str) else names[mesh_dim or 0]
        return pretended[name] if name in pretended else local(mesh, mesh_dim)

    patched = {"get_coordinate": get_coordinate, "_sym_get_coordinate": sym_get_coordinate}
    torch_distributed.clear_dtensor_caches()
    try:
        with mock.patch.multiple(kind, **patched, get_local_rank=get_local_rank):
            yield
    finally:
        torch_distributed.clear_dtensor_caches()
