"""Parameters and buffers that torch distributes (DTensor): their local tensors, and what their gradients are.

A step computes with local tensors and communicates through collectives of its own. Autograd sees the DTensors: they are
what `.grad`, hooks, optimizers and FSDP2 work with, so gradients are wrapped as eager's are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from msgspec.structs import replace

from ..errors import REPLAN, BindError
from ..flat_step.graph import Graph
from ..format.module_paths import unfold_paths
from ..format.schedule import Model
from ..operators.collectives import COLLECTIVES
from ..torch_private.distributed import dtensor_of
from .sharding import is_distributed


def local_tensor(tensor: Any) -> Any:
    """What this rank holds of a tensor; anything else as it is."""
    return tensor._local_tensor if is_distributed(tensor) else tensor


def mesh_names(mesh: Any) -> tuple[str, ...]:
    """The names of a mesh's dimensions; dim_0, dim_1 … where it has none."""
    return tuple(mesh.mesh_dim_names or (f"dim_{at}" for at in range(mesh.ndim)))


def mesh_groups(mesh: Any) -> dict[str, str]:
    """Names of torch's process groups by the names of a mesh's dimensions."""
    return {name: mesh.get_group(at).group_name for at, name in enumerate(mesh_names(mesh))}


class DistributedBinding:
    """The DTensors of a live model against what a file says of them.

    Args:
        planned: What the file says of the model.

    Attributes:
        named: What the file says of each tensor, by name.
        groups: Names of torch's process groups by mesh dimension, of the tensors that were compared.
    """

    def __init__(self, planned: Model) -> None:
        self._planned = planned
        self.named = {name: one for one in planned.distributed for name in unfold_paths(one.tensors)}
        self.groups: dict[str, str] = {}
        self._gradients: dict[str, tuple[Any, ...]] = {}

    def fault(self, name: str, tensor: Any) -> str:
        """How a live DTensor differs from the planned one; "" if it does not."""
        one, mesh = self.named[name], tensor.device_mesh
        names, placements = mesh_names(mesh), tuple(map(str, tensor.placements))
        if names != one.mesh:
            return f"planned over the mesh ({', '.join(one.mesh)}), distributed over ({', '.join(names)})"
        if placements != one.placements or tuple(tensor.shape) != one.shape:
            wanted = f"{list(one.shape)} as ({', '.join(one.placements)})"
            return f"planned {wanted}, the model has {list(tensor.shape)} as ({', '.join(placements)})"
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            return "this rank is not in its mesh"
        for at, dim in enumerate(names):
            if mesh.size(at) != self._planned.ranks[dim]:
                return f"planned for {self._planned.ranks[dim]} ranks of {dim!r}, there are {mesh.size(at)}"
            wanted = self._planned.coordinate.get(dim, coordinate[at])
            if wanted != coordinate[at]:
                return (
                    f"the step of rank {wanted} of {dim!r}, and this is rank {coordinate[at]}: ranks of this model do "
                    "different steps, so each has a file of its own"
                )
        for dim, group in mesh_groups(mesh).items():
            if self.groups.setdefault(dim, group) != group:
                return f"the mesh dimension {dim!r} is another group of ranks than for other tensors"
        return ""

    def check(self) -> None:
        """Raise BindError where a mesh dimension of the file is none of the model's."""
        missing = [name for name in self._planned.ranks if name not in self.groups]
        if missing:
            raise BindError(
                f"no tensor of the model is distributed over {', '.join(map(repr, missing))}, which the schedule "
                f"communicates over\n  call parallelize_module before apply, or {REPLAN}"
            )

    def gradient(self, name: str) -> tuple[Any, ...]:
        """Placements of the gradient of a tensor."""
        if name not in self._gradients:
            one = self.named[name]
            self._gradients[name] = tuple(map(placement, one.gradient or one.placements))
        return self._gradients[name]

    def resolved(self, graph: Graph) -> Graph:
        """The graph with torch's process groups in place of mesh dimensions."""
        operations = []
        for op in graph.operations:
            known = COLLECTIVES.get(op.op)
            if known is not None:
                at = known.group
                op = replace(op, args=(*op.args[:at], self.groups[op.args[at]], *op.args[at + 1 :]))
            operations.append(op)
        return replace(graph, operations=tuple(operations))


def placement(text: str) -> Any:
    """torch's placement: of R, S(0), P(sum)."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    if text == "R":
        return Replicate()
    inner = text[2:-1]
    return Shard(int(inner)) if text.startswith("S") else Partial(inner)


class GradientSpec:
    """What the gradient of a DTensor is, to be kept from forward to backward: it holds no tensor."""

    __slots__ = ("_mesh", "_meta", "_placements")

    def __init__(self, tensor: Any, placements: tuple[Any, ...]) -> None:
        spec = tensor._spec
        self._mesh, self._meta, self._placements = spec.mesh, spec.tensor_meta, placements

    def wrapped(self, local: torch.Tensor) -> torch.Tensor:
        """A local gradient as the DTensor that eager gives."""
        return dtensor_of(local, self._mesh, self._placements, self._meta)


Gradients = Mapping[int, tuple[Any, ...]]  # placements by the number of a source
NONE: Gradients = {}
