"""What the tests of partition and fold share: random steps and recomputations, schedules of folded steps,
comparison."""

from __future__ import annotations

import random
from typing import Any

from remate.block_templates.folding import Folded
from remate.capture.captured import Captured
from remate_runtime.flat_step.graph import FlatRecompute, Graph, Ref
from remate_runtime.format.schedule import FORMAT, VERSION, Schedule, Solve

from .synthetic import Tape

_SOLVE = Solve(
    strategy="none",
    solver="none",
    stopped_by="heuristic",
    cost="cpu",
    budget=0,
    peak=0,
    time=0,
    baseline_peak=0,
    baseline_time=0,
)


def schedule_of(folded: Folded) -> Schedule:
    return Schedule(
        format=FORMAT,
        version=VERSION,
        name="test",
        model=folded.model,
        solve=_SOLVE,
        blocks=folded.blocks,
        program=folded.program,
        statements=folded.statements,
        costs=folded.costs,
    )


def random_step(seed: int, operations: int) -> Captured:
    """A step with random wiring: skips, shared parameters, views, random operations, and modules entered in random
    order."""
    draw = random.Random(seed)
    paths = ["", "a", "a.0", "a.1", "a.2", "a.0.b", "a.1.b", "c", "c.d", "c.d.e"]
    kinds = {"a.0": "Layer", "a.1": "Layer", "a.2": "Layer", "a.0.b": "Norm", "a.1.b": "Norm", "c": "C", "c.d": "D"}
    tape = Tape(kinds)
    values = [tape.source("x"), tape.parameter("a.0.w"), tape.parameter("c.w"), tape.parameter("shared")]
    collected: list[int] = []
    module = ""
    for _ in range(operations):
        if draw.random() < 0.25:
            module = draw.choice(paths)
        recent = collected[-6:] if draw.random() < 0.8 else collected
        first = draw.choice(recent or values[:1])
        kind = draw.choice(["mul", "mul", "add", "relu", "tanh", "view", "native_dropout"])
        if kind in ("mul", "add"):
            collected.append(tape.op(kind, first, draw.choice(values + recent), module=module))
        else:
            collected.append(tape.op(kind, first, module=module, view=kind == "view"))
    total = collected[-1]
    for value in draw.sample(collected[:-1], min(3, len(collected) - 1)):
        total = tape.op("add", total, value)
    return tape.captured(tape.op("sum", total))


def random_recomputes(graph: Graph, seed: int, count: int) -> list[FlatRecompute]:
    """Legal recomputations at random points, in the order in which a schedule executes them."""
    draw = random.Random(seed)
    able = [i for i in range(graph.backward_start) if not graph.operations[i].view]
    points = [draw.randrange(graph.backward_start, len(graph.operations)) for _ in range(max(1, count // 3))]
    values = [FlatRecompute(draw.choice(able), draw.choice(points)) for _ in range(count)] if able else []
    return sorted(dict.fromkeys(values), key=lambda recompute: recompute.before)


def meaning(graph: Graph) -> dict[str, Any]:
    """A graph without arbitrary names and numbers: the producer identifies each value."""

    def value(v: int) -> Any:
        about = graph.values[v]
        if about.kind == "op":
            return (about.producer, graph.operations[about.producer].writes.index(v))
        return (about.kind, about.data, str(about.type)) if about.kind == "constant" else (about.kind, about.name)

    def argument(a: Any) -> Any:
        if isinstance(a, Ref):
            return ("value", value(a.value))
        return tuple(argument(x) for x in a) if isinstance(a, (tuple, list)) else a

    return {
        "backward_start": graph.backward_start,
        "operations": [
            (
                op.op,
                argument(op.args),
                {k: argument(x) for k, x in op.kwargs.items()},
                [None if v is None else str(graph.values[v].type) for v in op.writes],
                (op.multiple, op.view, op.random, op.ns, op.workspace),
            )
            for op in graph.operations
        ],
        "outputs": [value(v) for v in graph.outputs],
        "gradients": sorted((value(a), value(b)) for a, b in graph.gradients),
        "updates": sorted((value(a), value(b)) for a, b in graph.updates),
        "roots": [value(graph.root[v]) for op in graph.operations for v in op.writes if v is not None],
    }
