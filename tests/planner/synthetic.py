"""Captured steps without a model: a tape of forward operations in modules, and a mirrored backward."""

from __future__ import annotations

from typing import Any

from remate.capture.captured import Captured
from remate_runtime.flat_step.graph import Graph, Op, Ref, Value
from remate_runtime.format.schedule import Model
from remate_runtime.format.tensor_type import TensorType


class Tape:
    """Records operations on `f32[size]` tensors; `captured()` adds the backward and returns the step."""

    def __init__(self, classes: dict[str, str] | None = None) -> None:
        self.values: list[Value] = []
        self.operations: list[Op] = []
        self.modules: list[str] = []
        self.classes = {"": "Model", **(classes or {})}
        self._ids: dict[str, int] = {}
        self.root: list[int] = []

    def source(self, name: str, kind: str = "input", size: int = 8) -> int:
        return self._value(name, kind, size)

    def parameter(self, name: str, size: int = 8) -> int:
        return self._value(name, "parameter", size)

    def op(self, name: str, *reads: int, module: str = "", size: int = 8, view: bool = False, at: str = "") -> int:
        base = ".".join(p for p in (module, at, name) if p)
        self._ids[base] = self._ids.get(base, 0) + 1
        full = base if self._ids[base] == 1 else f"{base}_{self._ids[base]}"
        index = len(self.operations)
        value = self._value(full, "op", size, index)
        if view:
            self.root[value] = self.root[reads[0]]
        args = tuple(Ref(v) for v in reads)
        overload = f"aten.{name}.Tensor" if name in ("add", "mul") else f"aten.{name}"
        seen = tuple(dict.fromkeys(reads))
        self.operations.append(
            Op(full, overload, args, {}, seen, (value,), False, view, name == "native_dropout", 10 + size, 0)
        )
        self.modules.append(module)
        return value

    def captured(self, loss: int) -> Captured:
        backward_start = len(self.operations)
        kinds = [v.kind for v in self.values]
        tangent = self._value("grad.loss", "tangent", self.values[loss].type.shape[0])
        grads: dict[int, int] = {loss: tangent}
        for i in range(backward_start - 1, -1, -1):
            op, module = self.operations[i], self.modules[i]
            out = op.writes[0]
            if out is None or out not in grads:
                continue
            for k, read in enumerate(op.reads):
                if kinds[read] not in ("op", "parameter"):
                    continue
                size = self.values[read].type.shape[0]
                saved = op.reads[1 - k] if len(op.reads) == 2 else read
                if op.view:
                    value = self.op("view", grads[out], module=module, size=size, view=True, at="grad")
                elif op.op.startswith("aten.add"):
                    value = self.op("neg", grads[out], module=module, size=size, at="grad")
                else:
                    value = self.op("mul", grads[out], saved, module=module, size=size, at="grad")
                if read in grads:
                    value = self.op("add", grads[read], value, size=size, at="grad")
                grads[read] = value
        gradients = tuple((v, g) for v, g in sorted(grads.items()) if self.values[v].kind == "parameter")
        graph = Graph(
            tuple(self.values), tuple(self.operations), backward_start, (loss,), gradients, (), tuple(self.root), "cpu"
        )
        return Captured(graph, self._model(loss), tuple(self.modules), self.classes)

    def _value(self, name: str, kind: str, size: int, producer: int = -1) -> int:
        self.values.append(Value(name, TensorType("f32", (size,)), kind, producer))
        self.root.append(len(self.root))
        return len(self.values) - 1

    def _model(self, loss: int) -> Model:
        def types(kind: str) -> dict[str, str]:
            return {v.name: str(v.type) for v in self.values if v.kind == kind}

        inputs: list[Any] = [{"tensor": text, "name": name} for name, text in types("input").items()]
        return Model(
            fingerprint="sha256:" + "0" * 64,
            name="Model",
            torch="2.13.0",
            device="cpu",
            training=True,
            parameters=types("parameter"),
            inputs={"args": inputs, "kwargs": {}},
            outputs={"value": f"%{self.values[loss].name}", "name": "loss", "grad": True},
        )


def layers(count: int, modules: bool = True, residual: bool = True, loose: bool = False) -> Captured:
    """A stack of equal layers (norm, two matmuls, an activation) between an embedding and a head."""
    tape = Tape(
        {
            "embed": "Embedding",
            "head": "Linear",
            **{f"h.{k}": "Layer" for k in range(count)},
            **{f"h.{k}.mlp": "MLP" for k in range(count)},
        }
    )
    x = tape.op("mul", tape.source("x"), tape.parameter("embed.weight"), module="embed" if modules else "")
    for k in range(count):
        inside, mlp = (f"h.{k}", f"h.{k}.mlp") if modules else ("", "")
        y = tape.op("mul", x, tape.parameter(f"h.{k}.norm"), module=inside)
        y = tape.op("view", y, module=inside, view=True)
        y = tape.op("mul", y, tape.parameter(f"h.{k}.mlp.up", 32), module=mlp, size=32)
        y = tape.op("relu", y, module=mlp, size=32)
        y = tape.op("tanh", y, module=mlp, size=32)
        y = tape.op("native_dropout", y, module=mlp, size=32)
        y = tape.op("mul", y, tape.parameter(f"h.{k}.mlp.down", 32), module=mlp)
        x = tape.op("add", x, y, module="" if loose else inside) if residual else y
    x = tape.op("mul", x, tape.parameter("head.weight"), module="head" if modules else "")
    return tape.captured(tape.op("sum", x))
