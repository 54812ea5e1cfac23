"""Reads other graph files as bare instances: Moccasin's and other node-link files of networkx, POET's, and ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from remate_runtime.format import is_list, is_object
from remate_runtime.support.files import open_regular

from ..errors import InstanceError
from .form import (
    FORMAT,
    MAX_FILE_BYTES,
    MAX_NAME,
    VERSION,
    BareInstance,
    BareNode,
    checked,
    tree_check,
    typed,
)

# Attributes of a node; the first one present counts. remate's come first, then those of Moccasin's two kinds of graphs.
TIMES = ("time", "cost_cpu", "duration")
SIZES = ("bytes", "cost_ram", "out_cost")
NANO = 10**9
Decoded = TypeVar("Decoded")


def read(path: str | os.PathLike[str]) -> BareInstance:
    """Read an instance from a file of any known form. Raises OSError, and InstanceError with the file's name."""
    return contents(path, lambda data: parse(data, Path(path).name.removesuffix(".json")))


def contents(path: str | os.PathLike[str], decode: Callable[[bytes], Decoded]) -> Decoded:
    """Return what `decode` returns for a file. Raises OSError, and InstanceError with the file's name."""
    with open_regular(path) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    try:
        return decode(data)
    except InstanceError as error:
        raise InstanceError(f"{os.fspath(path)}: {error}") from None


def parse(data: bytes, name: str = "") -> BareInstance:
    """Return the instance in the text of a file.

    Args:
        data: The text.
        name: Used if the file has no name.

    Raises:
        InstanceError: The text is not a graph.
    """
    tree_check(data)
    tree = typed(data, dict[str, Any])
    if "format" in tree:
        return checked(typed(data, BareInstance))
    return from_tree(tree, name)


def from_tree(tree: Mapping[str, Any], name: str = "") -> BareInstance:
    """Convert the result of a JSON parser or of `networkx.node_link_data` to an instance. Raises InstanceError."""
    if tree.get("format") == FORMAT:
        return checked(typed(msgspec.json.encode(tree), BareInstance))
    if not isinstance(tree.get("nodes"), list) or not all(isinstance(node, dict) for node in tree["nodes"]):
        raise InstanceError(
            f"the file has no form that remate reads\n"
            f'  hint: write "format": "{FORMAT}" (schema/README.md), or node-link data of networkx'
        )
    return checked(_poet(tree, name) if "platform" in tree else _node_link(tree, name))


def _node_link(tree: Mapping[str, Any], name: str) -> BareInstance:
    """Convert nodes with a time and bytes, links by `source` and `target` (or the keys 0 and 1), and maybe
    `graph.order`."""
    given = tree.get("graph")
    about: dict[str, Any] = given if is_object(given) else {}
    keys = [_key(node) for node in tree["nodes"]]
    ids = dict(zip(keys, _ids(tree["nodes"], keys), strict=True))
    edges: list[tuple[str, str]] = []
    for link in _listed(tree, "links" if "links" in tree else "edges"):
        ends = _ends(link)
        if any(end not in ids for end in ends):
            raise InstanceError(f"the link {str(link)[:80]} does not join two nodes")
        edges.append((ids[ends[0]], ids[ends[1]]))
    order = tuple(ids.get(_plain(key), "") for key in _listed(about, "order"))
    nodes = tuple(_node(node, ids[key]) for node, key in zip(tree["nodes"], keys, strict=True))
    backward = {ids[key] for node, key in zip(tree["nodes"], keys, strict=True) if node.get("backward") is True}
    backward_start = next((node_id for node_id in order or ids.values() if node_id in backward), None)
    return BareInstance(
        FORMAT, VERSION, nodes, tuple(edges), str(about.get("name") or name)[:MAX_NAME], order, backward_start
    )


def _listed(tree: Mapping[str, Any], key: str) -> list[Any]:
    items = tree.get(key, [])
    if not is_list(items):
        raise InstanceError(f"`{key}` is not an array")
    return items


def _ids(nodes: list[dict[str, Any]], keys: list[Any]) -> list[str]:
    """Return names of nodes if all differ, else the keys of the graph."""
    names = [node.get("name") for node in nodes]
    if all(isinstance(n, str) and 0 < len(n) <= MAX_NAME and ":" not in n for n in names) and len(set(names)) == len(
        names
    ):
        return [str(n) for n in names]
    ids = [str(key) for key in keys]
    if len(set(ids)) < len(ids):
        raise InstanceError("two nodes have the same key\n  hint: give every node an `id` of its own")
    return ids


def _key(node: dict[str, Any]) -> Any:
    key = _plain(node.get("id", node.get("name")))
    if key is None:
        raise InstanceError(f"the node {str(node)[:80]} has no `id`")
    return key


def _plain(key: Any) -> str | int | None:
    return key if isinstance(key, str | int) and not isinstance(key, bool) else None


def _ends(link: Any) -> tuple[Any, Any]:
    if is_object(link):
        return _plain(link.get("source", link.get("0"))), _plain(link.get("target", link.get("1")))
    if is_list(link) and len(link) >= 2:
        return _plain(link[0]), _plain(link[1])
    raise InstanceError(f"the link {str(link)[:80]} does not join two nodes")


def _node(node: dict[str, Any], name: str) -> BareNode:
    given = _first(node, SIZES, name)
    sizes = given if is_list(given) else [given]
    return BareNode(
        name,
        _whole(_first(node, TIMES, name), name),
        tuple(_whole(size, name) for size in sizes),
        _whole(node.get("workspace", 0), name),
        node.get("recomputable") is not False,
    )


def _first(node: dict[str, Any], keys: tuple[str, ...], name: str) -> Any:
    value = next((node[key] for key in keys if key in node), None)
    if value is None:
        raise InstanceError(f"the node {name[:80]!r} has none of {', '.join(keys)}")
    return value


def _whole(number: Any, name: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int | float) or number % 1:
        raise InstanceError(
            f"the node {name[:80]!r}: {str(number)[:40]} is not a whole number\n  hint: choose a smaller unit"
        )
    return int(number)


def _poet(tree: Mapping[str, Any], name: str) -> BareInstance:
    """Convert POET's networks: seconds per node, positions as ids, the nodes of the forward first, then those of
    gradients."""
    listed, forward = tree["nodes"], tree.get("forward")
    last = len(forward) if is_list(forward) else forward
    if isinstance(last, bool) or not isinstance(last, int) or not 0 < last <= len(listed):
        raise InstanceError("`forward` must be a list of the forward's nodes, or their number")
    nodes, ids = list[BareNode](), dict[Any, str]()
    for node in listed:
        time, node_name = _first(node, ("time",), "?"), str(node.get("name", node.get("id")))
        if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < NANO:
            raise InstanceError(f"the node {node_name[:80]!r}: `time` must be at least 0 seconds, and under 10^9")
        ids[_key(node)] = node_name
        nodes.append(BareNode(node_name, round(time * NANO), (_whole(_first(node, ("bytes",), node_name), node_name),)))
    ends = [_ends(edge) for edge in _listed(tree, "edges")]
    if any(end not in ids for pair in ends for end in pair):
        raise InstanceError("an edge does not join two nodes")
    backward_start = nodes[last].id if last < len(nodes) else None
    called = f"{tree.get('model', name)}.{tree['platform']}"[:MAX_NAME]
    return BareInstance(
        FORMAT, VERSION, tuple(nodes), tuple((ids[a], ids[b]) for a, b in ends), called, (), backward_start
    )
