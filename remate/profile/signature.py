"""What makes two operations cost the same, as text that a person can read: operator, argument types, constants."""

from __future__ import annotations

from typing import Any

import msgspec

from remate_runtime.graph import Graph, Op, Ref


def signature(graph: Graph, op: Op) -> str:
    """`aten.addmm(f32[192], f32[512,64], f32[64,192]{1,64}, beta=1)`.

    A value read twice is written `&0` the second time, after the position at which it was first read.
    """
    seen: dict[int, int] = {}

    def text(argument: Any) -> str:
        if isinstance(argument, Ref):
            if argument.value in seen:
                return f"&{seen[argument.value]}"
            seen[argument.value] = len(seen)
            return str(graph.values[argument.value].type)
        if isinstance(argument, tuple | list):
            return f"[{', '.join(map(text, argument))}]"
        return msgspec.json.encode(argument, order="sorted").decode()

    positional = [text(a) for a in op.args]
    named = [f"{key}={text(op.kwargs[key])}" for key in sorted(op.kwargs)]
    return f"{op.op}({', '.join(positional + named)})"
