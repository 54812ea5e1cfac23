"""What makes two operations cost the same, as text that a person can read: operator, argument types, constants."""

from __future__ import annotations

from typing import Any

import msgspec

from remate_runtime.flat_step import Graph, Number, Op, Ref, planned_number


def signature(graph: Graph, op: Op) -> str:
    """`aten.addmm(f32[192], f32[512,64], f32[64,192]{1,64}, beta=1)`.

    A value read twice is written `&0` the second time, after the position at which it was first read. A view that is
    conjugated or negated only when it is read (which some operators do by a copy) ends in `.conj` or `.neg`.
    """
    seen: dict[int, int] = {}

    def text(argument: Any) -> str:
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
    """What is still to be done to the elements of a view when it is read: "conj", "neg", both or nothing."""
    found: set[str] = set()
    while (producer := graph.values[value].producer) >= 0 and graph.operations[producer].view:
        op = graph.operations[producer]
        if op.op in _PENDING:
            found ^= {_PENDING[op.op]}
        value = op.reads[0]
    return tuple(sorted(found))
