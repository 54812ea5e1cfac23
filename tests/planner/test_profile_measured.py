"""Measured costs: made-up arguments of the recorded types, workspace, state left alone, profile files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from remate.capture.capture_step import capture
from remate.errors import ProfileError
from remate.profile import measured, store
from remate.profile.cost import Cost
from remate.profile.costing import costed
from remate.profile.measured import measure
from remate.profile.signature import signature
from remate.profile.synthetic import arguments
from remate_runtime.flat_step.graph import Graph, Op, Ref, Value
from remate_runtime.format.tensor_type import parse_type
from tests.models import SMALLEST, ZOO

from .test_profile_roofline import graph_of

CPU = torch.device("cpu")


def cost_of(graph: Graph) -> Cost:
    return measure(graph, graph.operations[0], CPU)


def test_arguments_have_the_recorded_types():
    inputs = ["f32[4,6]{1,4}", "f32[3,5]{0,1}", "c64[3]", "bool[100]", "bf16[2,2]", "f8e4m3[4]", "f64[]", "i64[0,3]"]
    g = graph_of("aten.cat", inputs, ["f32[1]"], (tuple(Ref(i) for i in range(len(inputs))), {"dtype": "f32"}))
    (result, dtype), kwargs = arguments(g, g.operations[0], CPU)
    assert dtype == torch.float32
    assert kwargs == {}
    assert [tuple(t.shape) for t in result] == [v.type.shape for v in g.values[:-1]]
    assert result[0].stride() == (1, 4)
    assert result[1].stride() == (0, 1)
    assert result[2].dtype == torch.complex64
    assert result[3].dtype == torch.bool
    assert result[3].float().mean() > 0.5
    assert bool((result[0] > 0).all())


def test_indices_are_in_range_and_spread():
    torch.manual_seed(0)  # nine draws stay in the lower half three times in a thousand
    g = graph_of("aten.embedding", ["f32[50,4]", "i64[200]"], ["f32[200,4]"], (Ref(0), Ref(1)))
    (_, index), _ = arguments(g, g.operations[0], CPU)
    assert int(index.min()) >= 0
    assert 25 < int(index.max()) < 50
    g = graph_of("aten.gather", ["f32[3,50]", "i64[3,9]"], ["f32[3,9]"], (Ref(0), 1, Ref(1)))
    (_, _, index), _ = arguments(g, g.operations[0], CPU)
    assert 25 < int(index.max()) < 50
    g = graph_of("aten.index.Tensor", ["f32[3,50]", "i64[9]"], ["f32[3,9]"], (Ref(0), (None, Ref(1))))
    (_, (_, index)), _ = arguments(g, g.operations[0], CPU)
    assert 25 < int(index.max()) < 50
    assert not cost_of(g).note


def test_arguments_that_kernels_read_on_the_cpu_are_there():
    """Traced as on the device; efficient attention on CUDA dereferences seed and offset on the host."""
    tensors = ["f32[2,2,8,16]"] * 4 + ["f32[2,2,8,16]", "f32[2,2,32]", "i64[]", "i64[]"]
    args = (*map(Ref, range(4)), None, Ref(4), Ref(5), Ref(6), Ref(7), 0.1, (True, True, True, False), True)
    name = "aten._scaled_dot_product_efficient_attention_backward"
    g = graph_of(name, tensors, ["f32[2,2,8,16]"] * 3, args)
    assert [a.name for a in torch.ops.aten._scaled_dot_product_efficient_attention_backward.default._schema.arguments][
        7:9
    ] == ["philox_seed", "philox_offset"]
    result, _ = arguments(g, g.operations[0], torch.device("meta"))
    devices = [t.device.type for t in result if isinstance(t, torch.Tensor)]
    assert devices == ["meta"] * 6 + ["cpu"] * 2


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["aten.mm", "aten.bmm"])
def test_measured_on_cuda(name: str):
    shape = "f32[256,256]" if name == "aten.mm" else "f32[4,256,256]"
    g = graph_of(name, [shape, shape], [shape], (Ref(0), Ref(1)))
    first, second = (measure(g, g.operations[0], torch.device("cuda")) for _ in range(2))
    assert first.ns > 0
    assert not first.note
    assert first.workspace == second.workspace


@pytest.mark.cuda
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_operation_of_a_step_runs_on_made_up_arguments_on_cuda(dtype: torch.dtype, dropout: float):
    """Fused attention among them, which kernel it may be: f32 takes another one than bf16."""
    model, args, kwargs = ZOO["gpt2"].build("cuda")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    graph = capture(model.to(dtype), args, kwargs).graph
    distinct = {signature(graph, op): op for op in graph.operations if not op.view}
    notes = {key: measure(graph, op, torch.device("cuda")).note for key, op in distinct.items()}
    assert {key: note for key, note in notes.items() if note} == {}


def test_workspace_is_what_is_allocated_beyond_the_outputs():
    g = graph_of("aten.native_dropout", ["f32[1000]"], ["f32[1000]", "bool[1000]"], (Ref(0), 0.5, True), random=True)
    assert cost_of(g).workspace == 4000  # the CPU kernel draws the mask as floats
    g = graph_of("aten.add.Tensor", ["f32[1000]", "f32[1000]"], ["f32[1000]"], (Ref(0), Ref(1)))
    assert cost_of(g).workspace == 0


def test_a_slower_operation_costs_more():
    def product(n: int) -> int:
        return cost_of(graph_of("aten.mm", [f"f32[{n},{n}]"] * 2, [f"f32[{n},{n}]"], (Ref(0), Ref(1)))).ns

    assert product(256) > 4 * product(32)


def test_what_does_not_run_is_estimated_and_says_so():
    g = graph_of("aten.mm", ["f32[2,3]", "f32[4,5]"], ["f32[2,5]"], (Ref(0), Ref(1)))
    result = cost_of(g)
    assert result.ns >= 1
    assert result.note.startswith("estimated")


@pytest.mark.parametrize(
    "name",
    ["fourier", *(pytest.param(n, marks=pytest.mark.slow) for n in ("tiny_gpt", "resnet", "moe"))],
)
def test_every_operation_of_a_model_runs(name: str, tmp_path: Path):
    graph = capture(*ZOO[name].build(**SMALLEST[name])).graph
    state = torch.get_rng_state()
    result = costed(graph, profile=tmp_path / "p.json")
    assert torch.equal(state, torch.get_rng_state())
    assert all((op.ns == 0) == op.view for op in result.operations)
    saved = store.read(tmp_path / "p.json")
    assert saved is not None
    assert [key for key, cost in saved.costs.items() if cost.note] == [measured.REFERENCE]
    assert torch.is_grad_enabled()


def small() -> Graph:
    return graph_of("aten.neg", ["f32[8]"], ["f32[8]"], (Ref(0),))


def test_a_profile_is_reused_and_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "p.json"
    first = costed(small(), profile=path)
    before = path.read_bytes()
    assert costed(small(), profile=path) == first
    assert path.read_bytes() == before
    other = graph_of("aten.exp", ["f32[8]"], ["f32[8]"], (Ref(0),))
    costed(other, profile=path)
    both = store.read(path)
    assert both is not None
    assert list(both.costs) == ["aten.exp(f32[8])", "aten.neg(f32[8])", measured.REFERENCE]
    assert store.encode(both) == path.read_bytes()
    assert costed(small(), profile=path) == first
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]


def test_later_costs_are_those_of_a_machine_as_fast_as_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise the tiles of a split, measured last, seem fast or slow because of what else runs on the machine."""
    path, speed = tmp_path / "p.json", 1

    def taken(run: Callable[[], object], device: torch.device) -> int:
        return 1000 * speed

    monkeypatch.setattr(measured, "_time", taken)
    first = costed(small(), profile=path).operations[0].ns
    speed = 3
    later = costed(graph_of("aten.exp", ["f32[8]"], ["f32[8]"], (Ref(0),)), profile=path).operations[0].ns
    assert (first, later) == (1000, 1000)
    assert costed(small(), profile=path, again=True).operations[0].ns == 3000


def test_a_profile_of_another_machine_serves_but_is_not_completed(tmp_path: Path):
    path = tmp_path / "p.json"
    costs = {"aten.neg(f32[8])": Cost(ns=77, workspace=5)}
    store.write(path, store.Profile(format=store.FORMAT, version=1, device="else", torch="1.0", costs=costs))
    assert costed(small(), profile=path).operations[0].ns == 77
    with pytest.raises(ProfileError, match="measured on 'else'"):
        costed(graph_of("aten.exp", ["f32[8]"], ["f32[8]"], (Ref(0),)), profile=path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not a profile"),
        ("[" * 100_000, "not a profile"),
        ('{"format": "remate.profile", "version": 1}', "missing required field"),
        ('{"format":"remate.profile","version":9,"device":"","torch":"","costs":{}}', "version 9"),
        ('{"format":"remate.profile","version":1,"device":"","torch":"","costs":{"x":{"ns":-1}}}', r"\$\.costs"),
        ('{"format":"remate.profile","version":1,"device":"","torch":"","costs":{},"more":1}', "more"),
    ],
)
def test_a_damaged_profile_is_refused(text: str, says: str, tmp_path: Path):
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=says):
        costed(small(), profile=path)
    assert path.read_text() == text


def test_files_that_cannot_be_read_or_written(tmp_path: Path):
    with pytest.raises(ProfileError, match="cannot be read"):
        costed(small(), profile=tmp_path)
    with pytest.raises(ProfileError, match="cannot be written"):
        costed(small(), profile=tmp_path / "no" / "p.json")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_graph_for_cuda_needs_a_device():
    graph = small()
    moved = type(graph)(graph.values, graph.operations, 1, graph.outputs, (), (), graph.root, "cuda")
    with pytest.raises(ProfileError, match=r"a100, b200, h100, h200"):
        costed(moved)
    assert costed(moved, "h200").operations[0].ns >= 1


def test_progress_is_told():
    said: list[str] = []
    costed(small(), progress=said.append)
    (text,) = said
    assert text.startswith("measuring how long operations take on ")
    assert text.endswith(": 0 of 1")


def test_a_conjugated_view_costs_the_copy_that_its_reader_makes():
    values = [Value("a", parse_type("c64[8,8]"), "input"), Value("b", parse_type("c64[8,8]"), "op", 0)]
    values.append(Value("y", parse_type("c64[8,8]"), "op", 1))
    view = Op("b", "aten._conj", (Ref(0),), {}, (0,), (1,), False, True, False)
    product = Op("y", "aten.mm", (Ref(1), Ref(1)), {}, (1,), (2,), False, False, False)
    g = Graph(tuple(values), (view, product), 2, (2,), (), (), (0, 0, 2))
    assert signature(g, product) == "aten.mm(c64[8,8].conj, &0)"
    (left, right), _ = arguments(g, product, CPU)
    assert left is right
    assert left.is_conj()
    assert measure(g, product, CPU).workspace >= 8 * 8 * 8
