"""Converts a captured training step to a bare instance: operations with sizes and times, without their meaning.

Views are merged with their bases. Tangents, and old contents of buffers that forward updates, become operations of the
backward that take no time. Operations of the backward run once. This form cannot express three things that a schedule
counts: states of random generators, outputs that the caller of a step keeps while the step recomputes them, and host
memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from remate_runtime.flat_step import DEVICE, Graph

from ..strategy import StepInstance
from ..strategy.problem import Problem
from .form import FORMAT, VERSION, BareInstance, BareNode, checked

AT_BACKWARD_START = "backward_start."  # prefix of operations that the step itself does not have


def from_step(graph: Graph, name: str = "") -> BareInstance:
    """Return the instance of a costed graph.

    Args:
        graph: The step, with costs.
        name: The name of the instance.

    Raises:
        InstanceError: The step is larger than the form allows.
    """
    problem = StepInstance(graph).problem
    output = _outputs(graph, problem)
    forward = [_node(graph, problem, output, i) for i in problem.forward]
    backward = [_node(graph, problem, output, i) for i in problem.backward]
    edges = [
        (output[s], graph.operations[i].id) for i in (*problem.forward, *problem.backward) for s in problem.reads[i]
    ]
    arrivals, readings, kept = _arrivals(graph, problem, output)
    nodes = (*forward, *arrivals, *backward)
    backward_start = nodes[len(forward)].id if len(nodes) > len(forward) > 0 else None
    pins = (*(output[s] for s in sorted(problem.pinned)), *kept)
    return checked(BareInstance(FORMAT, VERSION, nodes, (*edges, *readings), name, (), backward_start, pins))


def _outputs(graph: Graph, problem: Problem) -> dict[int, str]:
    """Return the names of storages."""
    names: dict[int, str] = {}
    for i, op in enumerate(graph.operations):
        for number, s in enumerate(problem.writes[i]):
            names[s] = f"{op.id}:{number}" if number else op.id
    return names


def _node(graph: Graph, problem: Problem, output: dict[int, str], i: int) -> BareNode:
    sizes = tuple(problem.size[s] for s in problem.writes[i])
    may = tuple(output[s] for s in problem.may_overwrite[i])[: 2 if len(problem.reads[i]) == 2 else 1]
    again = i < problem.backward_start
    return BareNode(graph.operations[i].id, problem.time[i], sizes, problem.workspace[i], again, may)


def _arrivals(
    graph: Graph, problem: Problem, output: dict[int, str]
) -> tuple[list[BareNode], list[tuple[str, str]], list[str]]:
    """Return values that exist at the forward/backward boundary without being computed.

    Returns:
        Nodes, edges to their readers, and nodes to be kept.
    """
    nodes: list[BareNode] = []
    edges: list[tuple[str, str]] = []
    kept: list[str] = []
    if problem.until_backward_start and problem.backward:
        nodes.append(BareNode(f"{AT_BACKWARD_START}updates", 0, (), recomputable=False))
        edges += [(output[s], nodes[0].id) for s in sorted(problem.until_backward_start)]
    for v, value in enumerate(graph.values):
        tangent = value.kind == "tangent" and graph.memory(v) == DEVICE
        if not tangent and v not in problem.copies:
            continue
        node = BareNode(f"{AT_BACKWARD_START}{value.name}".replace(":", "."), 0, (graph.nbytes(v),), recomputable=False)
        readers = list(_readers(graph, problem, v))
        if tangent or readers:
            nodes.append(node)
            edges += [(node.id, graph.operations[i].id) for i in readers]
            kept += [node.id] * (tangent and graph.held_by_caller(v))
    return nodes, edges, kept


def _readers(graph: Graph, problem: Problem, owner: int) -> Iterable[int]:
    """Yield operations of the backward that read a storage that the step does not produce."""
    return (i for i in problem.backward if any(graph.root[v] == owner for v in graph.operations[i].reads))
