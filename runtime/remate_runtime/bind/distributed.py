"""Parameters and buffers that torch distributes (DTensor): their local tensors and the placements of their gradients.

A step computes with local tensors, and its collectives are operations of the step. Autograd sees the DTensors, because
`.grad`, hooks, optimizers and FSDP2 work with them. So gradients are wrapped like those of eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from msgspec.structs import replace

from ..errors import REPLAN, BindError
from ..flat_step.graph import Graph, Op
from ..format.module_paths import unfold_paths
from ..format.schedule import Model
from ..operators.collectives import COLLECTIVES
from ..torch_private.distributed import dtensor_of
from .sharding import is_distributed


def local_tensor(tensor: Any) -> Any:
    """Return this rank's part of a DTensor; any other object unchanged."""
    return tensor._local_tensor if is_distributed(tensor) else tensor


def mesh_names(mesh: Any) -> tuple[str, ...]:
    """Return the names of a mesh's dimensions; `dim_0`, `dim_1` … for a mesh without names."""
    return tuple(mesh.mesh_dim_names or (f"dim_{at}" for at in range(mesh.ndim)))


def mesh_groups(mesh: Any) -> dict[str, str]:
    """Return the names of torch's process groups by the names of a mesh's dimensions."""
    return {name: mesh.get_group(at).group_name for at, name in enumerate(mesh_names(mesh))}


class DistributedBinding:
    """Compares the DTensors of a live model with those of a file.

    Args:
        planned: The model section of the file.

    Attributes:
        named: The recorded distribution of each tensor, by name.
        groups: Names of torch's process groups by mesh dimension, of all compared tensors.
    """

    def __init__(self, planned: Model) -> None:
        self._planned = planned
        self.named = {name: entry for entry in planned.distributed for name in unfold_paths(entry.tensors)}
        self.groups: dict[str, str] = {}
        self._gradients: dict[str, tuple[Any, ...]] = {}

    def fault(self, name: str, tensor: Any) -> str:
        """Return how a live DTensor differs from the planned one; "" if it does not."""
        planned, mesh = self.named[name], tensor.device_mesh
        names, placements = mesh_names(mesh), tuple(map(str, tensor.placements))
        if names != planned.mesh:
            return f"planned over the mesh ({', '.join(planned.mesh)}), distributed over ({', '.join(names)})"
        if placements != planned.placements or tuple(tensor.shape) != planned.shape:
            wanted = f"{list(planned.shape)} as ({', '.join(planned.placements)})"
            return f"planned {wanted}, the model has {list(tensor.shape)} as ({', '.join(placements)})"
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            return "this rank is not in the tensor's mesh"
        for at, dim in enumerate(names):
            if mesh.size(at) != self._planned.ranks[dim]:
                return f"planned for {self._planned.ranks[dim]} ranks of {dim!r}, the mesh has {mesh.size(at)}"
            wanted = self._planned.coordinate.get(dim, coordinate[at])
            if wanted != coordinate[at]:
                return (
                    f"planned for rank {wanted} of {dim!r}, and this is rank {coordinate[at]}: ranks of this model run "
                    "different steps, so each needs its own file"
                )
        for dim, group in mesh_groups(mesh).items():
            if self.groups.setdefault(dim, group) != group:
                return f"the mesh dimension {dim!r} is another group of ranks than for other tensors"
        return ""

    def check(self) -> None:
        """Raise BindError if the model lacks a mesh dimension of the file."""
        missing = [name for name in self._planned.ranks if name not in self.groups]
        if missing:
            raise BindError(
                f"no tensor of the model is distributed over {', '.join(map(repr, missing))}, which the schedule "
                f"communicates over\n  call parallelize_module before apply, or {REPLAN}"
            )

    def gradient(self, name: str) -> tuple[Any, ...]:
        """Return the placements of a tensor's gradient."""
        if name not in self._gradients:
            planned = self.named[name]
            self._gradients[name] = tuple(map(placement, planned.gradient or planned.placements))
        return self._gradients[name]

    def resolved(self, graph: Graph) -> Graph:
        """Return the graph with torch's process groups in place of mesh dimensions."""
        operations: list[Op] = []
        for op in graph.operations:
            known = COLLECTIVES.get(op.op)
            if known is not None:
                at = known.group
                op = replace(op, args=(*op.args[:at], self.groups[op.args[at]], *op.args[at + 1 :]))
            operations.append(op)
        return replace(graph, operations=tuple(operations))


def placement(text: str) -> Any:
    """Return torch's placement for a text such as `R`, `S(0)` or `P(sum)`."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    if text == "R":
        return Replicate()
    inner = text[2:-1]
    return Shard(int(inner)) if text.startswith("S") else Partial(inner)


class GradientSpec:
    """The metadata of a DTensor's gradient, kept from forward to backward. It holds no tensor."""

    __slots__ = ("_mesh", "_meta", "_placements")

    def __init__(self, tensor: Any, placements: tuple[Any, ...]) -> None:
        spec = tensor._spec
        self._mesh, self._meta, self._placements = spec.mesh, spec.tensor_meta, placements

    def wrapped(self, local: torch.Tensor) -> torch.Tensor:
        """Wrap a local gradient in a DTensor like that of eager PyTorch."""
        return dtensor_of(local, self._mesh, self._placements, self._meta)


Gradients = Mapping[int, tuple[Any, ...]]  # placements by the index of a source
NONE: Gradients = {}
