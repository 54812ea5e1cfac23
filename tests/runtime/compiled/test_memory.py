"""The account of a compiled step: the simulator's where nothing is compiled, and kept within the budget where it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch._inductor import select_algorithm

from remate.capture.capture_step import capture
from remate.profile.costing import costed
from remate.step_measurement.allocator import peak_bytes
from remate_runtime import BindError, Schedule, apply, predicted_peak
from remate_runtime.engine.compiled import artefacts as artefacts_module
from remate_runtime.engine.compiled.artefacts import Artefacts, Function
from remate_runtime.engine.compiled.compiled_engine import computations
from remate_runtime.engine.compiled.fit import FittedSegments, fit, together
from remate_runtime.engine.compiled.inductor import DoesNotCompileError
from remate_runtime.engine.compiled.memory import Planned, predict
from remate_runtime.engine.compiled.segments import cut
from remate_runtime.engine.compiled.workspaces import Workspaces
from remate_runtime.engine.compiled.wrapper import Ran, WrapperMemory, held
from remate_runtime.engine.compiled_step import LinkedStep
from remate_runtime.flat_step import expand
from remate_runtime.format import Gradients
from remate_runtime.format.signature import output_leaves
from remate_runtime.format.tensor_type import parse_type
from remate_runtime.link import Linked, Run, link, simulate, step_contract
from remate_runtime.link.verifier import verify
from remate_runtime.operator_calls import operators
from tests.models import SMALLEST, ZOO

from ..small import Normed, Tied, TwoHeads, data, seeded
from ..stepping import everything, in_blocks, just_in_time, no_recomputes, schedule_of, with_recomputes
from ..test_gradients_assumed import Shared
from .subjects import Mixed

CPU = torch.device("cpu")


class OutputRecomputes(nn.Module):
    """An output that backward reads, and that runs again there."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(self.drop(self.norm(x)))
        return (y * y).mean(), y


SUBJECTS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "mixed": lambda: (seeded(Mixed(0.3)), data(64, 8)),
    "normed": lambda: (seeded(Normed()), data(4, 3, 6, 6)),
    "tied": lambda: (seeded(Tied()), torch.arange(5)),
    "heads": lambda: (seeded(TwoHeads()), data(4, 8)),
    "shared": lambda: (seeded(Shared()), data(8, 512)),
    "output": lambda: (seeded(OutputRecomputes()), data(64, 8).requires_grad_()),
}


def step_of(
    model: nn.Module, x: torch.Tensor, recomputes: Any, budget: int = 1 << 60, gradients: Gradients = "retained"
) -> LinkedStep:
    captured = capture(model, (x,))
    schedule = with_recomputes(msgspec.structs.replace(captured, graph=costed(captured.graph)), recomputes)
    solve = msgspec.structs.replace(schedule.solve, gradients=gradients)
    return linked_step(msgspec.structs.replace(schedule, solve=solve), budget)


def linked_step(schedule: Schedule, budget: int = 1 << 60) -> LinkedStep:
    verified = verify(schedule)
    graph = verified.linked.graph
    names = [value.name for value in graph.values if value.kind in ("input", "parameter", "buffer")]
    contract = step_contract(verified.linked, tuple(output_leaves(schedule.model.outputs)), names)
    return LinkedStep(verified.linked, contract, operators(graph, verified.where), verified.leaves, budget)


@pytest.mark.quick("tied-everything-retained")
@pytest.mark.parametrize("gradients", ["retained", "accumulated"])
@pytest.mark.parametrize("recomputes", [no_recomputes, everything, just_in_time])
@pytest.mark.parametrize("name", SUBJECTS)
def test_where_nothing_is_compiled_the_account_is_the_simulators(
    name: str, recomputes: Any, gradients: Gradients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remate_runtime.link.deliveries.TOGETHER", 1)
    step = step_of(*SUBJECTS[name](), recomputes, gradients=gradients)
    rows, left = computations(step.linked)
    sections = [[Planned(segment, None) for segment in cut(step.linked.graph, row, step.leaves)] for row in rows]
    result = predict(step.linked, sections, left, Artefacts()).account.peak
    assert result == simulate(step.linked).peak


@pytest.fixture
def wasteful(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Functions that free nothing while they run. Returns the names of what was compiled."""
    collected: list[str] = []

    def get(self: Artefacts, about: Any, what: str) -> Function:
        collected.append(what)
        return Function(about, about.key, lambda given: ())

    def held_(self: Artefacts, function: Function, owned: frozenset[int]) -> WrapperMemory:
        graph = function.about.module.graph
        sizes = tuple(kind.nbytes for kind in function.about.output_types)
        inside = 4096 * len([node for node in graph.nodes if node.op == "call_function"])
        return WrapperMemory(
            sum(function.about.input_types[at].nbytes for at in owned) + sum(sizes) + inside,
            sizes,
            (),
            function.about.output_types,
        )

    monkeypatch.setattr(artefacts_module.Artefacts, "prepare", lambda self, graphs: None)
    monkeypatch.setattr(artefacts_module.Artefacts, "get", get)
    monkeypatch.setattr(artefacts_module.Artefacts, "held", held_)
    return collected


def fitted(step: LinkedStep) -> FittedSegments:
    rows, left = computations(step.linked)
    return fit(step, rows, left, Artefacts())


@pytest.mark.slow
@pytest.mark.parametrize("recomputes", [no_recomputes, just_in_time])
def test_segments_are_split_until_the_prediction_keeps_the_budget(recomputes: Any, wasteful: list[str]) -> None:
    step = step_of(*SUBJECTS["mixed"](), recomputes)
    least = simulate(step.linked).peak
    free = fitted(step)
    assert free.account.peak > least
    count = len(wasteful)
    for budget in (least, (least + free.account.peak) // 2, free.account.peak):
        wasteful.clear()
        kept = fitted(step._replace(budget=budget))
        assert kept.account.peak <= budget
        events = [
            [piece.event for row in f.sections for segment in row for piece in segment.segment.pieces]
            for f in (free, kept)
        ]
        assert events[0] == events[1]
        compiled = [segment for row in kept.sections for segment in row if segment.function is not None]
        assert compiled  # what is not at the worst moment stays as it is
        assert (len(wasteful) > count) == (budget < free.account.peak)


class Wide(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(torch.tanh(self.wide(self.norm(x))).exp().sin().neg()).sigmoid()


class Uneven(nn.Module):
    """Two different blocks, followed by equal ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Wide(width) for width in (12, 20, 32, 32, 32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


@pytest.mark.quick("retained")
@pytest.mark.parametrize("gradients", ["retained", "accumulated"])
def test_deliveries_cut_backward_apart_where_somebody_waits_for_them(
    gradients: Gradients, wasteful: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remate_runtime.link.deliveries.TOGETHER", 1)
    step = step_of(*SUBJECTS["mixed"](), no_recomputes, gradients=gradients)
    rows, _ = computations(step.linked)
    assert sum(bool(row) for row in rows[1:]) > 2

    def filled(budget: int = 1 << 30) -> list[bool]:
        result = together(step.linked.graph, rows, budget)
        assert [piece for row in result for piece in row] == [piece for row in rows for piece in row]
        assert len(result) == len(rows)
        return [bool(row) for row in result[1:]]

    apart = [bool(row) for row in rows[1:]]
    whole = [True, *(False for _ in rows[2:])]
    assert filled() == (whole if gradients == "retained" else apart)
    assert filled(1 << 10) == apart  # gradients are most of what it holds
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert filled() == apart


def blocks_of(step: LinkedStep, planned: Planned) -> list[int]:
    """The blocks of the operations that run for the first time in a segment."""
    graph = step.linked.graph
    runs = [piece.event.op for piece in planned.segment.pieces if isinstance(piece.event, Run)]
    return list(dict.fromkeys(step.leaves[graph.operations[at].id] for at in runs))


@pytest.mark.slow
def test_neighbours_that_share_their_function_with_none_are_one_segment(wasteful: list[str]) -> None:
    step = linked_step(in_blocks(seeded(Uneven()), (data(64, 8),)))
    free = fitted(step)
    keys = [[segment.function.key if segment.function else "" for segment in row] for row in free.sections]
    uses = Counter(key for row in keys for key in row)
    assert not any(uses[a] == uses[b] == 1 for row in keys for a, b in pairwise(row))
    together = [segment for row in free.sections for segment in row if len(blocks_of(step, segment)) > 1]
    assert together
    assert max(uses.values()) == 4  # equal blocks stay apart, and share

    whole = max(together, key=lambda segment: len(blocks_of(step, segment)))
    kept = fitted(step._replace(budget=free.account.peak - 1))
    assert kept.account.peak < free.account.peak
    parts = [
        segment for row in kept.sections for segment in row if set(segment.segment.pieces) < set(whole.segment.pieces)
    ]
    if whole not in [segment for row in kept.sections for segment in row]:
        blocks = [block for part in parts for block in blocks_of(step, part)]
        assert len(blocks) == len(set(blocks))  # none is cut while there are borders of blocks


@pytest.mark.slow
def test_more_layers_are_not_more_functions(wasteful: list[str]) -> None:
    """A GPT-2 with twice as many layers shares the same functions."""
    results = []
    for layers in (3, 6):
        model, args, kwargs = ZOO["gpt2"].build(layers=layers, width=16, heads=2, batch=2, length=8, vocab=32)
        step = linked_step(in_blocks(model, args, no_recomputes, kwargs))
        functions = [segment.function for row in fitted(step).sections for segment in row]
        keys = [function.key for function in functions if function is not None]
        results.append((len(keys), len(set(keys))))
    (few, different), (many, same) = results
    assert many >= few + 6  # forward and backward of three layers
    assert same == different


def test_a_budget_below_the_interpreters_peak_ends_with_the_interpreter(wasteful: list[str]) -> None:
    step = step_of(*SUBJECTS["mixed"](), just_in_time)
    assert fitted(step._replace(budget=1)).account.peak <= simulate(step.linked).peak


def test_only_applied_models_have_a_prediction() -> None:
    model, x = SUBJECTS["heads"]()
    schedule = schedule_of(model, (x,))
    assert predicted_peak(apply(model, schedule)) == simulate(linked(schedule)).peak
    with pytest.raises(BindError, match="no schedule was applied"):
        predicted_peak(model)


def linked(schedule: Schedule) -> Linked:
    written = expand(schedule)
    return link(written.graph, written.recomputes)


extern_kernels: Any = select_algorithm.extern_kernels
empty_strided_cpu: Any = torch.empty_strided  # `held` has its own


class Products:
    """As Inductor writes what is around its kernels: products are written into tensors that are there."""

    def call(self, args: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        a, b = args
        args.clear()
        out = empty_strided_cpu((4, 6), (6, 1), torch.bfloat16)
        extern_kernels.mm(a, b, out=out)
        return (out,)


def test_products_need_room_of_their_own() -> None:
    """In low precision, on the CPU, more than their operands."""
    requested: list[str] = []

    def run(operator: Any, args: Any, kwargs: Any) -> Ran:
        requested.append(str(operator))
        return Ran(1000, ((6, 1),))

    function: Any = SimpleNamespace(compiled_fn_runner=Products())
    input_types, output_types = (parse_type("bf16[4,8]"), parse_type("bf16[8,6]")), (parse_type("bf16[4,6]"),)
    result = held(function, input_types, output_types, (), frozenset(), run, CPU)
    assert requested == ["aten.mm.out"]
    assert (result.peak, result.result_bytes) == (48 + 1000, (48,))


def test_a_result_that_lies_otherwise_than_predicted_names_its_operator() -> None:
    function: Any = SimpleNamespace(compiled_fn_runner=Products())
    input_types, output_types = (parse_type("bf16[4,8]"), parse_type("bf16[8,6]")), (parse_type("bf16[4,6]"),)

    def raising(operator: Any, args: Any, kwargs: Any) -> Ran:
        raise ValueError("no")

    for run, said in ((lambda *given: Ran(0, ((1, 4),)), "different memory layout"), (raising, "it raises no")):
        with pytest.raises(DoesNotCompileError, match=said) as caught:
            held(function, input_types, output_types, (), frozenset(), run, CPU)
        assert caught.value.operator == "aten.mm.out"


@pytest.mark.slow
def test_the_measured_peak_is_the_predicted_one() -> None:
    from remate_runtime.staleness import clear_gradients, training_step

    model, args, kwargs = ZOO["gpt2"].build(**SMALLEST["gpt2"])
    schedule = with_recomputes(capture(model, args, kwargs), no_recomputes)
    compiled = apply(model, schedule, engine="compiled")
    for _ in range(2):
        training_step(compiled, args, kwargs)
    clear_gradients(compiled, args, kwargs)
    measured = peak_bytes(lambda: training_step(compiled, args, kwargs))
    assert measured == pytest.approx(predicted_peak(compiled), rel=0.001)


class Distance(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.inner(x), x)


def test_what_is_interpreted_takes_what_it_takes_here() -> None:
    """Whatever the file says, which may be planned by estimates: here that it is nothing."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5))
    graph = capture(Distance(model), (data(32, 64),)).graph
    loss = next(op for op in graph.operations if op.op == "aten.mse_loss")
    drop = next(op for op in graph.operations if op.random)
    assert (loss.workspace, drop.workspace) == (0, 0)
    result = Workspaces(torch.device("cpu"))
    assert result.interpreted(graph, loss) >= 32 * 64 * 4  # the squares
    assert result.interpreted(graph, msgspec.structs.replace(loss, workspace=1 << 30)) == 1 << 30
    state = torch.get_rng_state()
    assert result.interpreted(graph, drop) >= 32 * 64 * 4  # the mask as floats
    assert torch.equal(torch.get_rng_state(), state)
