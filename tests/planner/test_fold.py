"""Folding is the inverse of expanding: same operations, same recomputations, whatever the step and its hierarchy."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from remate.block_templates.folding import fold, fold_flat
from remate.block_templates.plan_names import fresh_name
from remate.partition.partitioning import partition
from remate_runtime.flat_step.expansion import expand
from remate_runtime.flat_step.graph import FlatRecompute, Value
from remate_runtime.format import Recompute
from remate_runtime.format.reader import decode
from remate_runtime.format.tensor_type import TensorType
from remate_runtime.format.writer import encode

from .folding import meaning, random_recomputes, random_step, schedule_of
from .synthetic import Tape, layers


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), operations=st.integers(1, 120), count=st.integers(0, 30))
def test_round_trip_of_random_steps(seed: int, operations: int, count: int) -> None:
    captured = random_step(seed, operations)
    hierarchy = partition(captured)
    graph = hierarchy.captured.graph
    recomputes = random_recomputes(graph, seed, count)
    for folded in (fold(hierarchy.captured, recomputes, hierarchy), fold_flat(hierarchy.captured, recomputes)):
        schedule = decode(encode(schedule_of(folded)))
        expanded = expand(schedule)
        assert meaning(expanded.graph) == meaning(graph)
        assert list(expanded.recomputes) == recomputes


def test_flat_ids_are_the_captured_ones_below_the_instance() -> None:
    captured = layers(2)
    expanded = expand(schedule_of(fold_flat(captured, [])))
    assert [op.id for op in expanded.graph.operations[: captured.graph.backward_start]] == [
        f"model.{op.id}" for op in captured.graph.operations[: captured.graph.backward_start]
    ]


def test_equal_layers_share_one_template_and_plans_are_named() -> None:
    hierarchy = partition(layers(8))
    graph, parts = hierarchy.captured.graph, {part.id: part for part in hierarchy.parts}

    def again(name: str, point: str, words: tuple[str, ...] = ()) -> list[FlatRecompute]:
        before = parts[point].backward[0]
        chosen = [i for i in range(*parts[name].forward) if not graph.operations[i].view]
        return [FlatRecompute(i, before) for i in chosen if not words or graph.operations[i].id.endswith(words)]

    recomputes = [
        *again("h.6", "h.7"),  # the block above gets its boundary back,
        *again("h.7", "h.7"),  # then recomputations as a whole
        *again("h.3", "h.3", ("relu", "tanh")),
        *again("h.2", "h.2", ("relu", "tanh")),
        *again("h.1", "h.1", ("relu",)),
    ]
    folded = fold(hierarchy.captured, recomputes, hierarchy)
    plans = {instance.id: instance.plan for instance in folded.program}
    assert {i.block for i in folded.program if i.id.startswith("h.")} == {"Layer"}
    assert plans["h.2"] == plans["h.3"]
    assert {plans[name].rpartition("-")[0] for name in ("h.1", "h.2")} == {"recompute-mlp"}
    assert (plans["h.7"], plans["h.0"]) == ("boundary-only", "baseline")
    assert folded.statements == (Recompute(("h.6",), "h.7"),)
    assert expand(schedule_of(folded)).recomputes == tuple(recomputes)


def test_an_order_that_plans_cannot_say_goes_to_the_top_level() -> None:
    hierarchy = partition(layers(4))
    first, second = hierarchy.parts[1], hierarchy.parts[2]
    point = second.backward[0]
    recomputes = [
        FlatRecompute(second.forward[0], point),
        FlatRecompute(first.forward[0], point),
    ]  # own operation first
    folded = fold(hierarchy.captured, recomputes, hierarchy)
    assert all(instance.plan == "baseline" for instance in folded.program)
    assert expand(schedule_of(folded)).recomputes == tuple(recomputes)


def test_shared_parameters_are_bound_and_their_gradient_stated_once() -> None:
    tape = Tape({f"h.{k}": "Layer" for k in range(3)})
    x, shared = tape.source("x"), tape.parameter("shared.weight")
    for k in range(3):
        for j in range(4):
            x = tape.op("mul", x, shared, module=f"h.{k}")
            x = tape.op("mul", x, tape.parameter(f"h.{k}.w{j}"), module=f"h.{k}")
    hierarchy = partition(tape.captured(tape.op("sum", x)))
    expanded = expand(schedule_of(fold(hierarchy.captured, [], hierarchy)))
    assert meaning(expanded.graph) == meaning(hierarchy.captured.graph)


def test_large_repeated_modules_become_composites() -> None:
    classes = {f"h.{k}": "Layer" for k in range(3)} | {f"h.{k}.{s}": s.upper() for k in range(3) for s in "abc"}
    tape = Tape(classes)
    x = tape.source("x")
    for k in range(3):
        for s in "abc":
            for j in range(40):
                x = tape.op("mul", x, tape.parameter(f"h.{k}.{s}.w{j}"), module=f"h.{k}.{s}")
    hierarchy = partition(tape.captured(tape.op("sum", x)))
    assert [len(part.parts) for part in hierarchy.parts[:3]] == [3, 3, 3]
    graph = hierarchy.captured.graph
    inner = hierarchy.parts[1].parts
    recomputes = [FlatRecompute(i, inner[1].backward[0]) for i in range(*inner[0].forward)]
    folded = fold(hierarchy.captured, recomputes, hierarchy)
    assert {i.block for i in folded.program if i.id.startswith("h.")} <= {"Layer", "Layer_2"}
    assert folded.blocks["Layer"].instances
    assert folded.program[1].plan != "baseline"
    statement = next(iter(folded.blocks[folded.program[1].block].plans.values()))[0]
    assert isinstance(statement, Recompute)
    assert statement.recompute == ("a",)
    expanded = expand(decode(encode(schedule_of(folded))))
    assert meaning(expanded.graph) == meaning(graph)
    assert list(expanded.recomputes) == recomputes


def test_plan_names() -> None:
    block = ["ln_1.norm", "attn.q.mm", "attn.softmax", "ln_2.norm", "mlp.up.mm", "mlp.act.gelu", "add"]

    def named(operations: list[str], recompute: list[str]) -> str:
        return re.sub("-[0-9a-f]{4}$", "", fresh_name((), operations, recompute, ()))

    assert named(block, []) == "baseline"
    assert named(block, block) == "boundary-only"
    assert named(block, ["ln_1.norm", "ln_2.norm"]) == "recompute-norms"
    assert named(block, ["mlp.act.gelu"]) == "recompute-mlp"
    assert named(block, block[1:5]) == "recompute-attn-ln_2-mlp"
    assert named(block, [*block[:4], block[5]]) == "recompute-norms-attention-pointwise"
    assert named(["layer.0.norm.mul", "layer.0.attn.mm", "layer.1.ff.mm"], ["layer.1.ff.mm"]) == "recompute-ff"


def test_outputs_and_updates_that_no_operation_makes() -> None:
    captured = layers(3)
    graph = captured.graph
    buffer, constant = len(graph.values), len(graph.values) + 1
    kind = TensorType("f32", (8,))
    data = tuple(float(k) for k in range(8))
    graph = replace(
        graph,
        values=(*graph.values, Value("last", kind, "buffer"), Value("constant.0", kind, "constant", -1, data)),
        root=(*graph.root, buffer, constant),
        outputs=(*graph.outputs, 0, constant),  # value 0 is the input
        updates=((buffer, 0),),
    )
    outputs = [captured.model.outputs, {"value": "%x", "name": "x"}, {"value": "%constant.0", "name": "constant"}]
    model = replace(captured.model, buffers={"last": "f32[8]"}, outputs={"tuple": outputs})
    step = replace(captured, graph=graph, model=model)
    hierarchy = partition(step)
    for folded in (fold(hierarchy.captured, [], hierarchy), fold_flat(step, [])):
        expanded = expand(decode(encode(schedule_of(folded))))
        assert meaning(expanded.graph)["outputs"] == meaning(hierarchy.captured.graph)["outputs"]
        assert meaning(expanded.graph)["updates"] == meaning(hierarchy.captured.graph)["updates"]


def test_a_name_means_the_same_plan_in_every_file() -> None:
    block = ["ln_1.norm", "attn.mm", "attn.softmax", "ln_2.norm", "mlp.up.mm", "mlp.act.gelu"]

    def name(recompute: list[str], before: str = "grad.mm", taken: tuple[str, ...] = ()) -> str:
        return fresh_name((Recompute(tuple(recompute), before),), block, recompute, taken)

    norms = ["ln_1.norm", "ln_2.norm"]
    assert name(norms) == name(norms, "grad.other") == "recompute-norms"  # it names all that is recomputed
    some = [name(["ln_1.norm"]), name(["ln_2.norm"]), name(["ln_2.norm"], "grad.other")]
    assert len(set(some)) == 3
    assert all(item.startswith("recompute-norms-") for item in some)
    assert name(["ln_1.norm"]) == some[0]
    other = name(norms, "grad.other", ("recompute-norms",))
    assert other.startswith("recompute-norms-")
    assert other != name(norms, "grad.mm", ("recompute-norms",))
    assert name(norms, "grad.other", ("recompute-norms", other)).startswith(other)  # a longer hash
