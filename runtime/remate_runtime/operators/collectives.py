"""Collectives that a step may call: operators in which all ranks of a mesh dimension take part. Needs no torch.

A file names a mesh dimension where torch's operators take a process group. The result of a collective is complete when
the operation has run: the runtime waits for it, and a file has no `wait_tensor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class Collective(msgspec.Struct, frozen=True):
    """group: position of the argument that names the mesh dimension. sent: how often the larger of its argument and its
    result goes through a rank's link, for the share of each other rank."""

    group: int
    sent: int = 1


COLLECTIVES: Mapping[str, Collective] = MappingProxyType(
    {
        "_c10d_functional.all_gather_into_tensor": Collective(2),
        "_c10d_functional.all_reduce": Collective(2, sent=2),
        "_c10d_functional.all_to_all_single": Collective(3),
        "_c10d_functional.broadcast": Collective(2),
        "_c10d_functional.reduce_scatter_tensor": Collective(3),
        "_dtensor.shard_dim_alltoall": Collective(3),
    }
)
COMMUNICATION = frozenset(name.partition(".")[0] for name in COLLECTIVES)  # namespaces of the collectives
WAIT = "_c10d_functional.wait_tensor"
