"""Tensors in a schedule that torch distributes over ranks."""

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
