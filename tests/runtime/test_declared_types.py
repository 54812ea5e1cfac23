"""What a file declares of results: held against what torch infers before anything runs, and against what kernels
did."""

from __future__ import annotations

import pytest
import torch

import remate_runtime.operator_calls.inferred as inferred
from remate_runtime import apply
from remate_runtime.engine.eager.first_run import counts_elements, judged
from remate_runtime.errors import ExecutionError, ScheduleError
from remate_runtime.flat_step import expand
from remate_runtime.format.reader import decode
from remate_runtime.format.writer import encode
from remate_runtime.link import View
from remate_runtime.operator_calls import operators

from .small import Normed, data, seeded
from .stepping import schedule_of
from .strangers import edited, inputs, line, model

ONE = 1 << 50
LIES = [
    line("aten.zeros", [4, 1000, 1000, 1000], out="f32[1]"),
    line("aten.zeros", [4, 1000, 1000, 1000], out="f32[1]", device={"device": "cpu"}),
    line("aten.empty.memory_format", [1 << 40], out="f32[4]"),
    line("aten.repeat", "%x", [1 << 20, 1 << 20], out="f32[4,8]"),
    line("aten.add.Tensor", "%x", 1, out="f32[4]"),
    line("aten.exp", "%x", out="f64[4,8]"),
    line("aten.exp", "%x", out="i32[4,8]"),
    line("aten.exp", "%x", out="f32[4,8]{0,0}"),
    line("aten.t", "%a.weight", out="f32[8,32]"),
    line("aten.expand", "%x", [4, 8], out="f32[4,8]{0,0}"),
    line("aten.view", "%x", [8, 4], out="f32[4,8]"),
    line("aten.native_dropout", "%x", 0.5, True, out=("f32[4,8]", "f32[4,8]")),
    line("aten.split.Tensor", "%x", 1, out=("f32[4,8]",)),
    line("aten.mm", "%x", "%x", out="f32[4,8]"),
    line("aten.convolution", "%x", "%x", None, [1], [0], [1], False, [0], 1, out="f32[4,8]"),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: f"{lie[1]}-{lie[4]}")
def test_a_declared_type_that_is_not_what_torch_infers(lie) -> None:
    schedule = decode(encode(edited(lie)))
    with pytest.raises(ScheduleError) as caught:
        apply(model(), schedule)
    assert caught.value.code == "R053"
    assert caught.value.where.endswith("/forward/0")
    assert "'model.bad'" in caught.value.message
    assert lie[1] in caught.value.message
    assert caught.value.hint


def test_no_list_of_more_tensors_than_declared_is_made() -> None:
    """A tensor without elements of its own may have 2^50 of them along a dimension, and be split into as many."""
    wide = line("aten.expand", "%a.narrow", [ONE], out=f"f32[{ONE}]{{0}}", id="wide")
    narrow = line("aten.slice.Tensor", "%a.bias", 0, 0, 1, out="f32[1]", id="a.narrow")
    for piece in (
        line("aten.split.Tensor", "%wide", 1, out=("f32[1]", "f32[1]")),
        line("aten.unbind.int", "%wide", out=("f32[]", "f32[]")),
        line("aten.unsafe_split.Tensor", "%wide", 1, 0, out=("f32[1]",)),
    ):
        with pytest.raises(ScheduleError, match=rf"it has {ONE} outputs, the file declares"):
            apply(model(), edited(narrow, wide, piece))


def test_each_distinct_signature_is_inferred_once(monkeypatch) -> None:
    seen = []
    usual = inferred._judge
    monkeypatch.setattr(inferred, "_judge", lambda graph, op, live: seen.append(op.op) or usual(graph, op, live))
    lines = [line("aten.exp", "%x", out="f32[4,8]", id=f"exp_{i}") for i in range(50)]
    graph = expand(edited(*lines)).graph
    operators(graph, ["/x"] * len(graph.operations))
    assert seen.count("aten.exp") == 1


def test_a_file_of_half_precision_norms_is_taken() -> None:
    """On the CPU the statistics of a half-precision norm with full-precision weights have full precision."""
    x = data(4, 8)

    class Cast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(8)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return self.norm(a.bfloat16()).float()

    live = Cast()
    apply(live, schedule_of(live, (x,)))(x).sum().backward()


@pytest.fixture
def library():
    lib = torch.library.Library("remate_liars", "DEF")
    lib.define("same(Tensor x) -> Tensor")
    lib.impl(
        "same", lambda x: x.view_as(x) if x.device.type != "meta" else torch.empty_like(x), "CompositeExplicitAutograd"
    )
    lib.define("both(Tensor x) -> (Tensor, Tensor)")
    lib.impl("both", lambda x: (lambda y: (y, y.view_as(y)))(x.clone()), "CompositeExplicitAutograd")
    lib.define("part(Tensor x) -> Tensor")
    lib.impl("part", lambda x: torch.empty(1 << 20, dtype=x.dtype, device=x.device)[:8].fill_(1), "CPU")
    lib.impl("part", lambda x: x.new_empty(8), "Meta")
    lib.define("other(Tensor x) -> Tensor")
    lib.impl("other", lambda x: x.double(), "CPU")
    lib.define("shorter(Tensor x) -> Tensor")
    lib.impl("shorter", lambda x: x[:1].clone(), "CPU")
    yield ("remate_liars",)
    lib._destroy()


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (line("remate_liars.same", "%a.weight", out="f32[32,8]"), "in the storage of the parameter 'a.weight'"),
        (line("remate_liars.same", "%x", out="f32[4,8]"), "in the storage of the input 'x'"),
        (line("remate_liars.both", "%x", out=("f32[4,8]", "f32[4,8]")), "two of its outputs share a storage"),
        (line("remate_liars.part", "%x", out="f32[8]"), "takes 4,194,304 bytes"),
        (line("remate_liars.other", "%x", out="f32[4,8]"), "it returned f64"),
        (line("remate_liars.shorter", "%x", out="f32[4,8]"), r"it returned f32\[1,8\]"),
    ],
    ids=lambda v: v[1] if isinstance(v, tuple) else "",
)
def test_the_first_run_finds_what_kernels_do_otherwise(library, lie, message) -> None:
    """An operation that would run in place follows: nothing may have written into the parameter by then."""
    shape = lie[4] if isinstance(lie[4], str) else lie[4][0]
    result = "%bad" if isinstance(lie[4], str) else "%bad:0"
    over = line("aten.add.Scalar", result, 1, out=shape, id="over")
    live, x = model(), inputs()
    planned = apply(live, edited(lie, over, namespaces=library), namespaces=library)
    before, given = [p.detach().clone() for p in live.parameters()], x.clone()
    for _ in range(2):  # a refused step is judged again
        with pytest.raises(ExecutionError, match=message) as caught:
            planned(x)
        assert "'model.bad', remate_liars." in str(caught.value)
        assert "plan again" in str(caught.value)
    assert torch.equal(x, given)
    assert all(torch.equal(a, b) for a, b in zip(before, live.parameters(), strict=True))


@pytest.mark.eager
def test_only_the_first_run_is_judged(monkeypatch) -> None:
    from remate_runtime.engine.eager import first_run

    seen = []
    usual = first_run._check_type
    monkeypatch.setattr(first_run, "_check_type", lambda *args: seen.append(args[0].id) or usual(*args))
    live = seeded(Normed())
    x = data(4, 3, 6, 6)
    planned = apply(live, schedule_of(live, (x,)))
    planned(x).sum().backward()
    result = len(seen)
    assert result > len({*seen}) > 5  # recomputations are judged too
    planned(x).sum().backward()
    assert len(seen) == result
    with torch.no_grad():
        planned(x)  # inference runs other instructions
    assert len(seen) > result


def test_a_listed_view_that_copies_is_refused() -> None:
    graph = expand(edited(line("aten.t", "%x", out="f32[8,4]{1,8}"))).graph
    (given,), (produced,) = graph.operations[0].reads, graph.operations[0].writes
    assert produced is not None

    def run(slots: list) -> None:
        slots[produced] = slots[given].clone().t() if copies else slots[given].t()

    for copies in (False, True):
        slots: list = [None] * len(graph.values)
        slots[given] = inputs()
        if copies:
            with pytest.raises(ExecutionError, match="it returned a copy"):
                judged(run, graph.operations[0], View(0), torch.device("cpu"), counts_elements(graph))(slots, graph)
        else:
            judged(run, graph.operations[0], View(0), torch.device("cpu"), counts_elements(graph))(slots, graph)
