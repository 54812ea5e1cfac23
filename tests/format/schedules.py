"""Hypothesis strategies for schedules that the reader accepts. Their names need not refer to anything."""

from __future__ import annotations

import string
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from remate_runtime.format.number_text import names_of, number_fault, written_number
from remate_runtime.format.schedule import (
    Block,
    Constant,
    Dimension,
    Instance,
    Live,
    Model,
    Operation,
    Recompute,
    Schedule,
    Settings,
    Solve,
    SolvedPart,
)
from remate_runtime.format.vocabulary import CHOICES, DEVICES, DTYPE_NAMES, STOPPED_BY

_LETTERS = string.ascii_letters + string.digits + "_~-"
_counts = st.integers(0, 2**63 - 1)
_part = st.text(_LETTERS, min_size=1, max_size=6)
names = st.lists(_part, min_size=1, max_size=3).map(".".join)
references = st.builds("%{}{}".format, names, st.sampled_from(["", ":0", ":12"]))
texts = st.text(st.characters(codec="utf-8"), max_size=12)
types = st.sampled_from(["f32[]", "f32[8,256]", "bf16[4,4]{1,4}", "i64[]@cpu", "bool[0,3]", "c64[2]{0}"])
_specials = st.one_of(
    st.sampled_from([{key: word} for key, words in CHOICES.items() for word in words]),
    st.builds(
        lambda re, im: {"complex": [re, im]}, st.floats(allow_nan=False, allow_infinity=False), st.integers(-9, 9)
    ),
)
_trees_of_numbers: st.SearchStrategy[Any] = st.recursive(
    st.one_of(names, st.floats(0.001, 1000.0)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-*/"), inner, inner),
        st.tuples(st.sampled_from(["neg", "sqrt", "exp", "log"]), inner),
        st.tuples(st.just("pow"), inner, inner),
    ),
    max_leaves=4,
)
numbers = (
    _trees_of_numbers.filter(lambda tree: bool(names_of(tree)))
    .map(lambda tree: {"number": written_number(tree)})
    .filter(lambda literal: number_fault(literal["number"]) is None)
)
live = st.one_of(
    st.builds(Live, planned=st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(
        lambda planned, low, high: Live(planned=planned, **low, **high),
        st.floats(-10, 10),
        st.sampled_from([{}, {"min": -10.0}, {"above": -11}, {"above": -10.5}]),
        st.sampled_from([{}, {"max": 10}, {"below": 10.5}]),
    ),
)
_plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    texts.map(lambda text: "%" + text if text.startswith("%") else text).filter(
        lambda t: t[:1] != "%" or t[1:2] == "%"
    ),
)
arguments: st.SearchStrategy[Any] = st.recursive(
    st.one_of(_plain, references, _specials, numbers), lambda inner: st.lists(inner, max_size=3), max_leaves=6
)


def _dicts(values: st.SearchStrategy[Any], keys: st.SearchStrategy[str] = names) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(keys, values, max_size=3)


def _tuples(items: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, min_size=least, max_size=3).map(tuple)


operations = st.builds(
    Operation,
    id=names,
    op=st.sampled_from(["aten.mm", "aten.add.Tensor", "aten.native_dropout", "aten.__lshift__.Tensor"]),
    args=_tuples(arguments),
    kwargs=_dicts(arguments),
    out=st.one_of(types, _tuples(st.one_of(st.none(), types), 1)),
    workspace=_counts,
    source=st.sampled_from(["", "model.py:Block.forward+12", "net"]),
    note=texts,
)
recomputes = st.builds(Recompute, recompute=_tuples(names, 1), before=names, note=texts)
instances = st.builds(
    Instance,
    id=names,
    block=names,
    prefix=st.one_of(st.none(), st.just(""), names),
    bindings=_dicts(references),
    plan=st.one_of(st.just("baseline"), names),
    note=texts,
)
constants = st.sampled_from(
    [
        Constant(type="bool[2]", data=(True, False)),
        Constant(type="f32[2]", data=(1.5, {"float": "nan"}), note="n"),
        Constant(type="c128[]", data=({"complex": [0.0, -1.0]},)),
        Constant(type="u64[1]", data=(2**64 - 1,)),
    ]
)
_plans = _dicts(_tuples(recomputes), names.filter(lambda name: name != "baseline"))
_interface = {
    "inputs": _dicts(types),
    "parameters": _dicts(types),
    "buffers": _dicts(types),
    "live": _tuples(names),
    "gradients": _dicts(references),
    "updates": _dicts(references),
    "plans": _plans,
    "note": texts,
}
leaves = st.builds(
    Block, constants=_dicts(constants), forward=_tuples(operations), backward=_tuples(operations), **_interface
)
composites = st.builds(Block, instances=_tuples(instances, 1), **_interface)


def _trees(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    literals = st.one_of(_plain, _specials).map(lambda value: {"literal": value})
    return st.recursive(
        st.one_of(leaf, literals),
        lambda inner: st.one_of(
            st.lists(inner, max_size=2).map(lambda items: {"tuple": items}),
            st.lists(inner, max_size=2).map(lambda items: {"list": items}),
            st.dictionaries(texts, inner, max_size=2).map(lambda items: {"dict": items}),
            st.dictionaries(texts, inner, max_size=2).map(lambda items: {"record": "Output", "fields": items}),
        ),
        max_leaves=3,
    )


# one leaf at most: leaves' names must differ
_input = st.builds(lambda tree: {"args": [tree], "kwargs": {}}, _trees(st.just({"literal": None})))
_inputs = st.one_of(st.just({"args": [{"tensor": "f32[2]", "name": "x", "grad": True}]}), _input)
_outputs = st.one_of(st.just({"value": "%a:1", "name": "y", "grad": True}), _trees(st.just({"literal": True})))
_numbered = st.sampled_from(["", "h."]).flatmap(
    lambda top: st.lists(
        st.builds(
            lambda first, last, rest: [f"{top}{number}{tail}" for number in range(first, last) for tail in rest],
            st.integers(0, 3),
            st.integers(2, 12),
            st.sampled_from([[""], [".w", ".b"], [".w", ".0.v", ".1.v", ".2.v"], [".0.0", ".0.1", ".1.0", ".1.1"]]),
        ),
        max_size=2,
    )
)
_tensors = st.one_of(
    _dicts(types),
    st.builds(
        lambda lists, some, more: {**dict.fromkeys((n for names in lists for n in names), some), **more},
        _numbered,
        types,
        _dicts(types, st.sampled_from(["h.1.w", "h.3", "h.4.b", "2.w", "wte"])),
    ),
)
models = st.builds(
    Model,
    fingerprint=st.just("sha256:" + "0" * 64),
    name=texts,
    torch=texts,
    device=st.sampled_from(DEVICES),
    training=st.booleans(),
    mode_overrides=_tuples(names),
    autocast=st.sampled_from([None, *DTYPE_NAMES]),
    parameters=_tensors,
    frozen=_tuples(names),
    tied=_dicts(names),
    buffers=_tensors,
    live=_dicts(live),
    inputs=_inputs,
    outputs=_outputs,
    gradients=_dicts(references),
    note=texts,
)
settings = st.builds(
    Settings,
    budget=texts,
    strategy=texts,
    effort=texts,
    gap=st.floats(0, 1),
    time_limit=st.none() | st.floats(0.001, 1e6),
    differentiate=_tuples(texts),
    live=_tuples(texts),
    threads=st.integers(0, 4096),
)
solved_parts = st.builds(
    SolvedPart,
    part=texts,
    level=_counts,
    count=_counts,
    operations=_counts,
    plans=_counts,
    solver=texts,
    time=_counts,
)
solves = st.builds(
    Solve,
    strategy=texts,
    solver=texts,
    stopped_by=st.sampled_from(STOPPED_BY),
    cost=texts,
    budget=_counts,
    peak=_counts,
    time=_counts,
    baseline_peak=_counts,
    baseline_time=_counts,
    lower_bound=st.one_of(st.none(), _counts),
    gap=st.one_of(st.none(), st.floats(-1, 1)),
    profile=st.sampled_from(["", "0123456789abcdef"]),
    settings=st.none() | settings,
    parts=_tuples(solved_parts),
    note=texts,
)
_sizes = {
    "b": Dimension(min=2, max=32, planned=8),
    "t": Dimension(min=4, max=64, multiple=4, planned=16),
}
_sized_types = st.sampled_from(["f32[b,t]", "f32[b,t+1]{t+1,1}", "bf16[t/4,4*b*t]", "i64[(b+1)//2]@cpu", "f32[8,256]"])
_sized_arguments = st.sampled_from(
    [{"size": "t+1"}, {"size": "-b+2"}, {"float": "2/(b+1)"}, {"float": "1/sqrt(t)"}, {"float": "inf"}]
)


@st.composite
def _with_sizes(draw: st.DrawFn, plain: Schedule) -> Schedule:
    """A schedule in which some numbers are expressions of named sizes."""
    blocks = {}
    for name, block in plain.blocks.items():
        forward = [
            replace(
                op,
                args=(*op.args, [draw(_sized_arguments)]),
                out=draw(_sized_types) if isinstance(op.out, str) else tuple(draw(_sized_types) for _ in op.out),
                workspace=draw(st.sampled_from([0, "16*b", "4*b*t+16"])),
            )
            for op in block.forward
        ]
        blocks[name] = replace(block, inputs=dict.fromkeys(block.inputs, draw(_sized_types)), forward=tuple(forward))
    inputs = {"args": [{"tensor": "f32[b,t]", "name": "x"}, {"literal": {"size": "t"}}]}
    return replace(plain, blocks=blocks, model=replace(plain.model, dims=_sizes, inputs=inputs))


_plain_schedules = st.builds(
    Schedule,
    schema=st.sampled_from(["", "schedule-1.schema.json"]),
    format=st.just("remate.schedule"),
    version=st.just(1),
    revision=st.integers(0, 3),
    name=texts,
    note=texts,
    model=models,
    solve=solves,
    blocks=_dicts(st.one_of(leaves, composites)),
    program=_tuples(instances),
    statements=_tuples(recomputes),
    costs=_dicts(_dicts(_counts)),
)
sized_schedules = _plain_schedules.flatmap(_with_sizes)
schedules = st.one_of(_plain_schedules, sized_schedules)
