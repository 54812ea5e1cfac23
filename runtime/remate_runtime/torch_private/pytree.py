"""Leaves of nested containers, as torch's own tracing sees them."""

from __future__ import annotations

from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["tree_leaves", "tree_map_only"]
