"""The module and line of every traced operation. A backward operation has those of its forward operation."""

from __future__ import annotations

import msgspec
from torch.fx import Graph, Node

from . import torch_api
from .places import SourcePlace


class Origin(msgspec.Struct, frozen=True):
    module: str = ""
    place: SourcePlace = SourcePlace()


def origins(graph: Graph) -> dict[Node, Origin]:
    """Return the origins of nodes. Call it before simplifying, which can drop nodes that autograd numbered."""
    known_origins: dict[Node, Origin] = {}
    numbered: dict[int, Origin] = {}  # autograd gave the number to the first forward node that has it
    for node in graph.nodes:
        mark = torch_api.marked(node)
        if torch_api.is_backward(node) or mark is None:
            continue
        known_origins[node] = Origin(*mark)
        number = torch_api.sequence(node)
        if number is not None:
            numbered.setdefault(number, known_origins[node])
    for node in graph.nodes:
        number = torch_api.sequence(node)
        if torch_api.is_backward(node) and number in numbered:
            known_origins[node] = numbered[number]
    return known_origins


def complete(graph: Graph, known_origins: dict[Node, Origin]) -> dict[Node, Origin]:
    """Give sums of gradients and similar operations the origin of the last operation whose result they read.

    So gradients of a value are summed in the block that read it first, and one gradient goes to the block before.
    """
    order = {node: at for at, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.op != "call_function" or node in known_origins:
            continue
        known = sorted((n for n in node.all_input_nodes if n in known_origins), key=order.__getitem__)
        if known:
            known_origins[node] = known_origins[known[-1]]
    for node in reversed(graph.nodes):
        if node.op == "call_function" and node not in known_origins:
            known_origins[node] = next((known_origins[n] for n in node.users if n in known_origins), Origin())
    return known_origins
