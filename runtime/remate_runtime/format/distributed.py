"""Tensors in a schedule that torch distributes over ranks: DTensors, and parameters that FSDP2 shards."""

from __future__ import annotations

import msgspec


class Distributed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Parameters or buffers that torch distributes in the same way (DTensor). The file has the local tensor of each.

    Placements are those of torch, one for each mesh dimension: R, S(0), P(sum).
    """

    tensors: tuple[str, ...]  # names; a run of numbers is written once: layers.[0-3].wq.weight
    shape: tuple[int, ...]  # of the whole tensor
    mesh: tuple[str, ...]  # dimensions of the device mesh
    placements: tuple[str, ...]
    gradient: tuple[str, ...] = ()  # placements of the gradient, if they differ


class Sharded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How `fully_shard` (FSDP2) divides the parameters over ranks. Budget and peaks are those of one rank.

    The model is sharded, too: it has the parameters that no other module here has.
    """

    modules: tuple[str, ...] = ()  # paths; a run of numbers is written once: layers.[0-31]
    shards: int  # number of ranks that each parameter is divided over
    kept: tuple[str, ...] = ()  # those that stay gathered from forward to backward; "" is the model


def sharded_text(sharded: Sharded) -> str:
    """Return how a model is sharded, in words."""
    kept = ", ".join(path or "the model" for path in sharded.kept) or "none"
    return f"{', '.join(sharded.modules)} over {sharded.shards} ranks (kept after forward: {kept})"
