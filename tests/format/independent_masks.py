"""Masks that splits draw whole, for the second simulator: from `schema/README.md` and `schema/rows-1.json` alone,
nothing of remate imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .independent_rows import ROWS

if TYPE_CHECKING:
    from .independent_step import Json, Op, Step


def draw_masks(step: Step, named: list[int], costs: tuple[Json, Json], home: str) -> list[int]:
    """Replace the named operations that draw masks. Return the named ones by their new indices."""
    again: list[Op] = []
    members: list[int] = []
    start = 0
    for i, op in enumerate(step.ops):
        if i in named and ROWS["operators"].get(op.line["op"], {}).get("rule") == "drawn":
            again += drawn(step, op, costs, home)
        else:
            again.append(op)
        members += [len(again) - 1] if i in named else []
        start = len(again) if i < step.backward_start else start
    for full, (forward, backward) in step.spans.items():
        inside = {step.ops[i].id for span in (forward, backward) for i in span}
        at = [i for i, op in enumerate(again) if op.id.partition("@")[0] in inside or op.id in inside]
        halves = [[i for i in at if (i >= start) == side] for side in (False, True)]
        step.spans[full] = tuple(range(h[0], h[-1] + 1) if h else range(0) for h in halves)  # type: ignore
    step.ops, step.backward_start = again, start
    return members


def drawn(step: Step, op: Op, costs: tuple[Json, Json], home: str) -> list[Op]:
    from .independent_step import Name

    assert step.model["device"] == "cpu"
    dropout = op.line["op"] == "aten.native_dropout"
    about = step.types[op.writes[0]]
    if dropout:
        assert about.dtype in ("f32", "f64")
        assert 0 <= op.args[1] <= 1
        assert op.args[2] is not False
        assert op.line["out"][0] is not None
    order = list(range(len(about.shape)))
    if about.strides is not None:
        order.sort(key=lambda d: -about.strides[d] if about.shape[d] > 1 else float("-inf"))  # type: ignore[index]
    large = [d for d in order if about.shape[d] > 1]
    order = sorted(order) if large == sorted(large) else order
    kept = op.writes[1] if dropout and len(op.writes) > 1 else None
    plain = about._replace(dtype="bool", shape=tuple(about.shape[d] for d in order), strides=None)
    written: list[Op] = []

    def add(suffix: str, operator: str, reads: list[str], type_: Any, name: str | None = None) -> str:
        line = {"op": operator, "out": "", "id": f"{op.id}@all.{suffix}"}
        key = line["id"].removeprefix(home + ".")
        line["workspace"] = costs[1].get(key, 0)
        name = name or line["id"]
        step.types[name] = type_
        made = op._replace(id=line["id"], line=line, args=[Name(v) for v in reads], reads=reads, writes=[name], ns=0)
        written.append(made if made.view else made._replace(ns=costs[0].get(key, 0)))
        return name

    empty = add("empty", "aten.empty.memory_format", [], plain._replace(shape=(1,)))
    like = add("like", "aten.expand", [empty], plain._replace(strides=(0,) * len(order)))
    straight = order == sorted(order)
    mask = add("mask", "aten.bernoulli.p", [like], plain, kept if straight else None)
    if not straight:
        mask = add("order", "aten.permute", [mask], about._replace(dtype="bool"), kept)
        written[-1].args.append([order.index(d) for d in range(len(order))])
    operator, reads = ("aten.native_dropout_backward", [op.reads[0], mask]) if dropout else ("aten._to_copy", [mask])
    reader = op._replace(args=[Name(v) for v in reads], reads=reads, writes=op.writes[:1])
    return [*written, reader._replace(line={**op.line, "op": operator, "out": "", "kwargs": {}})]
