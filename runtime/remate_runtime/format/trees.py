"""Trees of inputs and outputs: containers, with tensors and literals as leaves.

A node is an object with one of the keys of `CONTAINERS`, or a leaf. The keys of a user's dict are below `dict`, so they
may be spelled like those of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .json_values import is_object

_ITEMS = ("tuple", "list", "dict", "fields")  # keys of nodes with the nodes below


def leaf_nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the leaves of a tree in order."""
    kind = next((kind for kind in _ITEMS if kind in node), None)
    if kind is None:
        yield node
        return
    for child in node[kind].values() if is_object(node[kind]) else node[kind]:
        yield from leaf_nodes(child)


def literals_in(node: Any) -> list[Any]:
    """Return the literals of a tree in order."""
    return [leaf["literal"] for leaf in leaf_nodes(node) if "literal" in leaf]


def map_tree(leaf: Callable[..., Any], *nodes: Any) -> Any:
    """Return the tree with `leaf(*leaves)` at each place, for leaves of trees with the same containers."""
    first = nodes[0]
    kind = next((kind for kind in _ITEMS if kind in first), None)
    if kind is None:
        return leaf(*nodes)
    below = [node[kind] for node in nodes]
    return {**first, kind: _mapped(leaf, below)}


def map_inputs(leaf: Callable[..., Any], *inputs: Any) -> dict[str, Any]:
    """Return inputs with `leaf(*leaves)` at each place, as `map_tree` does."""
    return {key: _mapped(leaf, [each[key] for each in inputs]) for key in inputs[0]}


def map_outputs(leaf: Callable[..., Any], *outputs: Any) -> Any:
    """Return outputs with `leaf(*leaves)` at each place, as `map_tree` does, also in attributes."""
    if "returns" not in outputs[0]:
        return map_tree(leaf, *outputs)
    returned = map_tree(leaf, *map(returned_by, outputs))
    return {"returns": returned, "attributes": _mapped(leaf, list(map(attributes_of, outputs)))}


def attributes_of(outputs: Any) -> dict[str, Any]:
    """Return the trees of the attributes that forward sets, by path."""
    return outputs["attributes"] if is_object(outputs) and "returns" in outputs else {}


def returned_by(outputs: Any) -> Any:
    """Return the tree of what forward returns."""
    return outputs["returns"] if is_object(outputs) and "returns" in outputs else outputs


def _mapped(leaf: Callable[..., Any], items: list[Any]) -> Any:
    """Map the nodes of equal arrays or objects."""
    first = items[0]
    if is_object(first):
        return {key: map_tree(leaf, *(each[key] for each in items)) for key in first}
    return [map_tree(leaf, *nodes) for nodes in zip(*items, strict=True)]
