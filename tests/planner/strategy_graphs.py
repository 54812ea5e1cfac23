"""Synthetic training steps for strategy tests: a small tape that writes forward and backward operations of a Graph."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from remate_runtime.flat_step.graph import Graph, Op, Ref, Value
from remate_runtime.format.tensor_type import TensorType


@dataclass
class Tape:
    """Forward operations with what their backward reads; `graph()` appends the backward in reverse order."""

    values: list[Value] = field(default_factory=list)
    operations: list[Op] = field(default_factory=list)
    records: list[tuple[int, tuple[int, ...], tuple[int, ...], int, int]] = field(default_factory=list)
    device: str = "cpu"

    def source(self, name: str, size: int, kind: str = "input") -> int:
        self.values.append(Value(name, TensorType("i8", (size,)), kind))
        return len(self.values) - 1

    def add(
        self, op: str, reads: tuple[int, ...], sizes: tuple[int, ...], ns: int, workspace: int = 0
    ) -> tuple[int, ...]:
        index = len(self.operations)
        first = len(self.values)
        for k, size in enumerate(sizes):
            self.values.append(Value(f"v{index}:{k}", TensorType("i8", (size,)), "op", index))
        result = tuple(range(first, first + len(sizes)))
        multiple = len(sizes) > 1
        args = tuple(Ref(v) for v in reads)
        reads = tuple(dict.fromkeys(reads))
        self.operations.append(Op(f"op{index}", op, args, {}, reads, result, multiple, False, False, ns, workspace))
        return result

    def forward(
        self,
        inputs: tuple[int, ...],
        sizes: tuple[int, ...],
        ns: int,
        *,
        saves_inputs: bool = True,
        saves_output: bool = False,
        parameter: int = 0,
        op: str = "synthetic.op",
        workspace: int = 0,
    ) -> int:
        """One forward operation. Its backward reads inputs, outputs or neither; parameter: bytes of its gradient."""
        value = self.add(op, inputs, sizes, ns, workspace)
        saved = (inputs if saves_inputs else ()) + (value if saves_output else value[1:])
        self.records.append((len(self.operations) - 1, inputs, saved, parameter, ns))
        return value[0]

    def graph(self, loss: int) -> Graph:
        backward_start = len(self.operations)
        tangent = self.source("grad.loss", self.values[loss].type.nbytes, "tangent")
        gradient = {loss: tangent}
        gradients: list[tuple[int, int]] = []
        for index, inputs, saved, parameter, ns in reversed(self.records):
            produced = self.operations[index].writes[0]
            if produced is None or produced not in gradient:
                continue
            reads = (gradient[produced], *dict.fromkeys(saved))
            wanted = [v for v in dict.fromkeys(inputs) if self.values[v].kind == "op"]
            sizes = tuple(self.values[v].type.nbytes for v in wanted)
            new = self.add("synthetic.grad", reads, sizes, 2 * ns) if sizes else ()
            for v, g in zip(wanted, new, strict=True):
                old = gradient.get(v)
                size = (self.values[v].type.nbytes,)
                gradient[v] = g if old is None else self.add("aten.add.Tensor", (old, g), size, ns // 4 + 1)[0]
            if parameter:
                (g,) = self.add("synthetic.weight", reads, (parameter,), ns)
                weight = self.source(f"w{index}", parameter, "parameter")
                gradients.append((weight, g))
        root = tuple(range(len(self.values)))
        return Graph(
            tuple(self.values), tuple(self.operations), backward_start, (loss,), tuple(gradients), (), root, self.device
        )


def transformer(layers: int, unit: int = 1000, head: int = 8) -> Graph:
    """A chain of blocks as in a decoder: norms, matrix products, softmax, dropout, and a residual stream."""
    t = Tape()
    x = t.forward((t.source("x", unit),), (unit,), 300, saves_inputs=False, parameter=2 * unit)
    for _ in range(layers):
        n = t.forward((x,), (unit, 8, 8), 60, parameter=8)
        qkv = t.forward((n,), (3 * unit,), 900, parameter=unit)
        q, k, v = (t.forward((qkv,), (unit,), 40, saves_inputs=False) for _ in range(3))
        scores = t.forward((q, k), (6 * unit,), 300)
        scaled = t.forward((scores,), (6 * unit,), 90, saves_inputs=False)
        soft = t.forward((scaled,), (6 * unit,), 100, saves_inputs=False, saves_output=True)
        drop = t.forward((soft,), (6 * unit, 2 * unit), 110, saves_inputs=False)
        mixed = t.forward((drop, v), (unit,), 300)
        out = t.forward((mixed,), (unit,), 300, parameter=unit)
        dropped = t.forward((out,), (unit, unit // 4), 40, saves_inputs=False)
        x = t.forward((x, dropped), (unit,), 40, saves_inputs=False, op="aten.add.Tensor")
        n = t.forward((x,), (unit, 8, 8), 60, parameter=8)
        up = t.forward((n,), (4 * unit,), 1200, parameter=4 * unit)
        act = t.forward((up,), (4 * unit,), 80)
        down = t.forward((act,), (unit,), 1200, parameter=4 * unit)
        dropped = t.forward((down,), (unit, unit // 4), 40, saves_inputs=False)
        x = t.forward((x, dropped), (unit,), 40, saves_inputs=False, op="aten.add.Tensor")
    logits = t.forward((x,), (head * unit,), 4000, parameter=2 * unit)
    soft = t.forward((logits,), (head * unit,), 500, saves_inputs=False, saves_output=True)
    return t.graph(t.forward((soft,), (4,), 100))


def random_graph(seed: int, operations: int) -> Graph:
    """A small random step: mixed sizes and costs, several readers, some operations with two outputs."""
    r = random.Random(seed)
    t = Tape()
    live = [t.forward((t.source("x", 5),), (r.randint(4, 12),), r.randint(1, 9), saves_inputs=False)]
    for _ in range(operations - 2):
        inputs = tuple(dict.fromkeys(r.choice(live[-4:]) for _ in range(r.randint(1, 2))))
        sizes = tuple(r.randint(2, 14) for _ in range(r.choice((1, 1, 2))))
        kind = r.random()
        additive = len(inputs) == 2 and len(sizes) == 1 and r.random() < 0.5
        live.append(
            t.forward(
                inputs,
                sizes,
                r.randint(1, 20),
                saves_inputs=kind < 0.6,
                saves_output=kind > 0.4,
                parameter=r.choice((0, 0, 3)),
                op="aten.add.Tensor" if additive else "synthetic.op",
            )
        )
    return t.graph(t.forward(tuple(dict.fromkeys(live[-2:])), (1,), 2))


def frozen_base(layers: int) -> Graph:
    """Frozen layers, which have no backward, a trained branch beside the later ones, as LoRA adds them, and a mask that
    is made at the beginning and read by all of these."""
    t = Tape()
    (x,) = t.add("synthetic.frozen", (t.source("x", 100),), (100,), 30)
    (mask,) = t.add("synthetic.frozen", (x,), (60,), 3)
    for layer in range(layers):
        (up,) = t.add("synthetic.frozen", (x,), (400,), 90)
        (act,) = t.add("synthetic.frozen", (up,), (400,), 10)
        (base,) = t.add("synthetic.frozen", (act,), (100,), 90)
        if layer >= layers // 2:
            low = t.forward((x,), (300,), 5, parameter=8)
            squashed = t.forward((low,), (300,), 2, saves_inputs=False, saves_output=True)
            side = t.forward((squashed, mask), (100,), 5, parameter=8)
            x = t.forward((side, base), (100,), 4, saves_inputs=False)
        else:
            x = base
    return t.graph(t.forward((x,), (1,), 2))


def unrolled(layers: int, length: int, unit: int = 1000) -> Graph:
    """A recurrent net unrolled over time, layer by layer, as an LSTM is captured: gates, a cell state, a hidden
    state."""
    t = Tape()
    weight = t.source("w", 16 * unit, "parameter")
    inputs = [t.forward((t.source("x", length * unit),), (unit,), 4, saves_inputs=False) for _ in range(length)]
    for _ in range(layers):
        hidden = t.forward((weight,), (unit,), 1, saves_inputs=False)
        cell = t.forward((weight,), (unit,), 1, saves_inputs=False)
        outputs = []
        for x in inputs:
            mine = t.forward((x,), (4 * unit,), 200)
            other = t.forward((hidden,), (4 * unit,), 200)
            gates = t.forward((mine, other), (4 * unit,), 12, saves_inputs=False)
            i, f, g, o = (t.forward((gates,), (unit,), 4, saves_inputs=False, saves_output=True) for _ in range(4))
            kept = t.forward((f, cell), (unit,), 5)
            new = t.forward((i, g), (unit,), 5)
            cell = t.forward((kept, new), (unit,), 5, saves_inputs=False, op="aten.add.Tensor")
            squashed = t.forward((cell,), (unit,), 4, saves_inputs=False, saves_output=True)
            hidden = t.forward((o, squashed), (unit,), 5)
            outputs.append(hidden)
        inputs = outputs
    return t.graph(t.forward(tuple(inputs), (4,), 100))


def forward_only(operations: int) -> Graph:
    """A step without backward: a chain whose early values are read again at its end."""
    t = Tape()
    values = [t.add("synthetic.op", (t.source("x", 5),), (20,), 3)[0]]
    for _ in range(operations):
        values.append(t.add("synthetic.op", (values[-1],), (20,), 3)[0])
    for early in values[1:5]:
        values.append(t.add("synthetic.op", (values[-1], early), (20,), 3)[0])
    root = tuple(range(len(t.values)))
    return Graph(tuple(t.values), tuple(t.operations), len(t.operations), (values[-1],), (), (), root, "cpu")
