"""Tiny random training steps with everything that makes recomputations hard: operators with in-place forms, several
outputs, views, buffers that the step updates, random operations, and narrow chains whose operations are recomputed
twice."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from msgspec.structs import replace

from remate_runtime.flat_step.graph import Graph, Op, Ref, Value
from remate_runtime.format.tensor_type import TensorType

KINDS = ("plain", "in place", "updates", "narrow", "views", "random")
UNARY = ("aten.relu", "aten.gelu", "aten.neg")
BINARY = ("aten.add.Tensor", "aten.mul.Tensor")


@dataclass
class _Step:
    """A step as it grows. records: of forward operations, (inputs, values that backward reads, output, bytes of a
    parameter's gradient). live: values that following operations may read."""

    kind: str
    chance: random.Random
    values: list[Value] = field(default_factory=list)
    operations: list[Op] = field(default_factory=list)
    root: list[int] = field(default_factory=list)
    records: list[tuple[list[int], list[int], int, int]] = field(default_factory=list)
    live: list[int] = field(default_factory=list)

    def source(self, name: str, size: int, kind: str) -> int:
        self.values.append(Value(name, TensorType("i8", (size,)), kind))
        self.root.append(len(self.root))
        return len(self.root) - 1

    def add(self, op: str, reads: list[int], sizes: list[int], ns: int = 0, workspace: int = 0, flag: str = "") -> int:
        """Add an operation. Returns its first output; the others follow. flag: "view" or "random"."""
        index, first = len(self.operations), len(self.values)
        for k, size in enumerate(sizes):
            self.values.append(Value(f"v{index}:{k}", TensorType("i8", (size,)), "op", index))
            self.root.append(self.root[reads[0]] if flag == "view" else first + k)
        args, seen = tuple(Ref(v) for v in reads), tuple(dict.fromkeys(reads))
        produced, several = tuple(range(first, first + len(sizes))), len(sizes) > 1
        self.operations.append(
            Op(f"op{index}", op, args, {}, seen, produced, several, flag == "view", flag == "random", ns, workspace)
        )
        return first

    def size(self, value: int) -> int:
        return self.values[value].type.nbytes

    def bytes(self, least: int, most: int) -> int:
        """A random size. Generator states have thousands of bytes, so tensors beside them do, too."""
        return self.chance.randint(least, most) * (1000 if self.kind == "random" else 1)

    def computed(self, values: list[int]) -> list[int]:
        return [v for v in values if self.values[v].kind == "op"]


def tiny_step(seed: int, forward: int, kind: str) -> Graph:
    """A step of `forward` random forward operations of a kind (one of KINDS), a loss, and their backward."""
    step = _Step(kind, random.Random(f"{kind} {seed}"))
    step.live = [step.source("x", 4, "input")]
    running = step.source("running", step.bytes(1, 6), "buffer") if kind == "updates" else -1
    for _ in range(forward):
        _forward(step, running)
    ends = list(dict.fromkeys(step.live[-2:]))
    loss = step.add("synthetic.loss", ends, [1], 1)
    step.records.append((ends, ends[:1], loss, 0))
    outputs, updates = [loss], []
    free = step.computed(step.live)
    if kind in ("in place", "updates", "views") and free and step.chance.random() < 0.6:
        outputs.append(step.chance.choice(free))
    if kind == "updates" and (free := [v for v in free if v not in outputs]):
        new = step.chance.choice(free)
        same = step.size(new) == step.size(running)
        updates.append((running if same else step.source("count", step.size(new), "buffer"), new))
    if kind == "views" and step.chance.random() < 0.5:  # the forward ends with a view
        outputs[-1] = step.add("aten.view", outputs[-1:], [step.size(outputs[-1])], flag="view")
    backward_start = len(step.operations)
    gradients = _backward(step, loss)
    return Graph(
        tuple(step.values),
        tuple(step.operations),
        backward_start,
        tuple(outputs),
        tuple(gradients),
        tuple(updates),
        tuple(step.root),
    )


def reading_parameters(graph: Graph, seed: int) -> Graph:
    """The same step, in which some operations read the parameters that gradients are of, so that a gradient may be
    complete before its parameter is free."""
    chance, operations = random.Random(seed), list(graph.operations)
    for source, _ in graph.gradients:
        for index in chance.sample(range(len(operations)), 2):
            op = operations[index]
            if not op.view and op.op.startswith("synthetic"):
                operations[index] = replace(op, args=(*op.args, Ref(source)), reads=(*op.reads, source))
    return replace(graph, operations=tuple(operations))


def sharing_gradients(graph: Graph) -> Graph:
    """The same step, in which every second gradient is that of a further parameter, too."""
    values, root, gradients = list(graph.values), list(graph.root), list(graph.gradients)
    for _, value in graph.gradients[::2]:
        gradients.append((len(values), value))
        values.append(Value(f"w{len(values)}", graph.values[value].type, "parameter"))
        root.append(len(root))
    return replace(graph, values=tuple(values), root=tuple(root), gradients=tuple(gradients))


def _forward(step: _Step, running: int) -> None:
    """One more operation on some of the latest values; what backward reads of it is a matter of chance."""
    chance, live = step.chance, step.live
    pool = live[-2:] if step.kind == "narrow" else live[-4:]
    inputs = list(dict.fromkeys(chance.choice(pool) for _ in range(chance.randint(1, 2))))
    ns = chance.choice((1, 1, 2, 3, 5, 8, 13, 21))
    workspace = 0 if step.kind == "plain" else chance.choice((0, 0, 0, 3, 6))
    op, sizes, flag = "synthetic.op", [step.bytes(1, 15)], ""
    own = step.computed(inputs)
    if step.kind != "plain" and own and chance.random() < 0.5:
        op, inputs, sizes = _elementwise(step, own[0])
    elif step.kind == "random" and chance.random() < 0.5:
        op, flag = "aten.bernoulli", "random"
    elif step.kind in ("in place", "updates") and chance.random() < 0.3:
        sizes = [step.bytes(1, 12), step.bytes(1, 12)]
    elif step.kind == "updates" and chance.random() < 0.4:
        inputs = [*inputs, running]
    if step.kind == "views" and chance.random() < 0.5:
        inputs[0] = step.add("aten.view", inputs[:1], [step.size(inputs[0])], flag="view")
    first = step.add(op, inputs, sizes, ns, workspace, flag)
    values = [first + k for k in range(len(sizes))]
    saves = chance.random()
    saved = inputs if saves < 0.65 else []
    if saves > 0.45:
        saved = [*saved, *values]
    elif chance.random() < 0.7:
        saved = [*saved, *values[1:]]
    step.records.append((inputs, saved, first, chance.choice((0, 0, 4))))
    live.append(first)
    if len(values) > 1 and chance.random() < 0.5:
        live.append(values[1])


def _elementwise(step: _Step, value: int) -> tuple[str, list[int], list[int]]:
    """An operator with an in-place form, its arguments, and the size of its output."""
    size = step.size(value)
    same = [v for v in step.computed(step.live) if v != value and step.size(v) == size]
    if same and step.chance.random() < 0.7:
        return step.chance.choice(BINARY), [value, same[-1]], [size]
    return step.chance.choice(UNARY), [value], [size]


def _backward(step: _Step, loss: int) -> list[tuple[int, int]]:
    """Add operations that mirror the records. Returns the gradients of the parameters."""
    chance, gradient = step.chance, {loss: step.source("grad.loss", 1, "tangent")}
    results: list[tuple[int, int]] = []
    for inputs, saved, output, parameter in reversed(step.records):
        if output not in gradient:
            continue
        reads = list(dict.fromkeys([gradient[output], *saved]))
        wanted = list(dict.fromkeys(step.root[v] for v in step.computed(inputs)))
        wanted = [v for v in wanted if step.values[v].kind == "op"]
        if wanted:
            op = "synthetic.grad"
            if len(wanted) == 1 and step.size(wanted[0]) == step.size(output) and chance.random() < 0.6:
                op = ("aten.neg", "aten.mul.Tensor", op)[min(len(reads) - 1, 2)]
            workspace = 0 if step.kind == "plain" else chance.choice((0, 0, 4))
            value = step.add(op, reads, [step.size(v) for v in wanted], 2 * chance.randint(1, 9), workspace)
            for k, v in enumerate(wanted):
                old = gradient.get(v)
                new = value + k
                gradient[v] = new if old is None else step.add("aten.add.Tensor", [old, new], [step.size(v)], 1)
        if parameter:
            name = f"w{len(step.operations)}"
            value = step.add("synthetic.weight", reads, [parameter], chance.randint(1, 9))
            if step.kind == "views" and chance.random() < 0.5:
                value = step.add("aten.view", [value], [parameter], flag="view")
            results.append((step.source(name, parameter, "parameter"), value))
    return results
