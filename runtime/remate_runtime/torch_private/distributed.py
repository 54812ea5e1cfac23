"""Process groups, their store, and tensors that torch distributes. Functions import torch.distributed when they run."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["default_store", "distributed_tensor", "process_group"]


def process_group(name: str) -> Any:
    """Return the process group that torch registered under a name."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._resolve_process_group(name)


def default_store() -> Any:
    """Return the key-value store of the default process group."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def distributed_tensor(local: torch.Tensor, mesh: Any, placements: tuple[Any, ...], meta: Any) -> torch.Tensor:
    """Wrap a local tensor as a DTensor without gradient, and without communication.

    Args:
        local: The tensor of this rank.
        mesh: The device mesh.
        placements: One for each mesh dimension.
        meta: Shape, strides and dtype of the whole tensor, as in `DTensorSpec`.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    build: Any = DTensor
    return build(local, DTensorSpec(mesh, placements, meta), requires_grad=False)
