"""The signature of an operation's cost as readable text: operator, argument types, constants."""

from __future__ import annotations

import msgspec

from remate_runtime.flat_step import Argument, Graph, Number, Op, Ref, planned_number


def signature(graph: Graph, op: Op) -> str:
    """Return a signature like `aten.addmm(f32[192], f32[512,64], f32[64,192]{1,64}, beta=1)`.

    A value that is read again is written `&0`, after the position of its first read. A view that is conjugated or
    negated when read (some operators then copy it) ends in `.conj` or `.neg`.
    """
    seen: dict[int, int] = {}

    def text(argument: Argument | list[Argument]) -> str:
        if isinstance(argument, Ref):
            if argument.value in seen:
                return f"&{seen[argument.value]}"
            seen[argument.value] = len(seen)
            pending = "".join(f".{what}" for what in pending_of(graph, argument.value))
            return f"{graph.values[argument.value].type}{pending}"
        if isinstance(argument, Number):
            argument = planned_number(graph, argument)
        if isinstance(argument, tuple | list):
            return f"[{', '.join(map(text, argument))}]"
        return msgspec.json.encode(argument, order="sorted").decode()

    positional = [text(a) for a in op.args]
    named = [f"{key}={text(op.kwargs[key])}" for key in sorted(op.kwargs)]
    return f"{op.op}({', '.join(positional + named)})"


_PENDING = {"aten._conj": "conj", "aten._neg_view": "neg"}


def pending_of(graph: Graph, value: int) -> tuple[str, ...]:
    """Return what remains to be done to a view's elements when it is read: "conj", "neg", both or nothing."""
    pending: set[str] = set()
    while (producer := graph.values[value].producer) >= 0 and graph.operations[producer].view:
        op = graph.operations[producer]
        if op.op in _PENDING:
            pending ^= {_PENDING[op.op]}
        value = op.reads[0]
    return tuple(sorted(pending))
