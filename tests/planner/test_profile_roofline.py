"""The roofline model: arithmetic counted by hand, scaling, and the rules for workspace."""

from __future__ import annotations

from typing import Any

import pytest

from remate.errors import ProfileError
from remate.profile.costing import costed
from remate.profile.devices import DEVICES
from remate.profile.flops import matrix_flops, vector_flops
from remate.profile.power import POWER
from remate.profile.roofline import estimate
from remate.profile.signature import signature
from remate.profile.workspace import workspace
from remate_runtime.flat_step.graph import Graph, Op, Ref, Value
from remate_runtime.format.tensor_type import parse_type


def graph_of(op: str, inputs: list[str], outputs: list[str], args: tuple[Any, ...], **fields: Any) -> Graph:
    """One operation. In `args`, `Ref(i)` is the i-th input."""
    values = [Value(f"x{i}", parse_type(t), "input") for i, t in enumerate(inputs)]
    values += [Value(f"y{i}", parse_type(t), "op", 0) for i, t in enumerate(outputs)]
    writes = tuple(range(len(inputs), len(values)))
    operation = Op(
        "y",
        op,
        args,
        fields.get("kwargs", {}),
        tuple(range(len(inputs))),
        writes,
        len(outputs) > 1,
        fields.get("view", False),
        fields.get("random", False),
    )
    return Graph(tuple(values), (operation,), 1, writes, (), (), tuple(range(len(values))))


def flops(graph: Graph) -> float:
    return matrix_flops(graph, graph.operations[0])


def test_matrix_products():
    assert flops(graph_of("aten.mm", ["f32[3,5]", "f32[5,7]"], ["f32[3,7]"], (Ref(0), Ref(1)))) == 2 * 3 * 5 * 7
    g = graph_of("aten.addmm", ["f32[7]", "f32[3,5]", "f32[5,7]{1,5}"], ["f32[3,7]"], (Ref(0), Ref(1), Ref(2)))
    assert flops(g) == 2 * 3 * 5 * 7
    g = graph_of("aten.bmm", ["bf16[4,3,5]", "bf16[4,5,7]"], ["bf16[4,3,7]"], (Ref(0), Ref(1)))
    assert flops(g) == 2 * 4 * 3 * 5 * 7
    g = graph_of("aten.mm", ["c64[3,5]", "c64[5,7]"], ["c64[3,7]"], (Ref(0), Ref(1)))
    assert flops(g) == 8 * 3 * 5 * 7


CONV = ((1, 1), (1, 1), (1, 1))


def test_convolutions():
    args = (Ref(0), Ref(1), None, *CONV, False, (0, 0), 1)
    g = graph_of("aten.convolution", ["f32[2,3,8,8]", "f32[16,3,3,3]"], ["f32[2,16,8,8]"], args)
    forward = 2 * (2 * 16 * 8 * 8) * 3 * 9
    assert flops(g) == forward
    args = (Ref(0), Ref(1), Ref(2), (0,), *CONV, False, (0, 0), 1, (True, True, False))
    inputs, outputs = ["f32[2,16,8,8]", "f32[2,3,8,8]", "f32[16,3,3,3]"], ["f32[2,3,8,8]", "f32[16,3,3,3]"]
    assert flops(graph_of("aten.convolution_backward", inputs, outputs, args)) == 2 * forward
    transposed = (Ref(0), Ref(1), None, (2, 2), (0, 0), (1, 1), True, (0, 0), 1)
    g = graph_of("aten.convolution", ["f32[2,8,4,4]", "f32[8,5,2,2]"], ["f32[2,5,8,8]"], transposed)
    assert flops(g) == 2 * (2 * 8 * 4 * 4) * 5 * 4


def test_attention_counts_two_products_and_half_of_them_if_causal():
    name, kinds = "aten._scaled_dot_product_flash_attention_for_cpu", ["f32[2,4,64,16]"] * 3
    full = graph_of(name, kinds, ["f32[2,4,64,16]", "f32[2,64,4]"], (Ref(0), Ref(1), Ref(2), 0.0, False))
    half = graph_of(name, kinds, ["f32[2,4,64,16]", "f32[2,64,4]"], (Ref(0), Ref(1), Ref(2), 0.0, True))
    assert flops(full) == 2 * 2 * (2 * 4 * 64 * 64 * 16)
    assert flops(half) == flops(full) / 2


def test_elementwise_arithmetic():
    g = graph_of("aten.add.Tensor", ["f32[10]", "f32[10]"], ["f32[10]"], (Ref(0), Ref(1)))
    assert (flops(g), vector_flops(g, g.operations[0])) == (0, 10)
    g = graph_of("aten.gelu", ["f32[10]"], ["f32[10]"], (Ref(0),))
    assert vector_flops(g, g.operations[0]) > 10


def big_product(dtype: str) -> Graph:
    return graph_of("aten.mm", [f"{dtype}[8192,8192]"] * 2, [f"{dtype}[8192,8192]"], (Ref(0), Ref(1)))


@pytest.mark.parametrize(("device", "dtype", "peak"), [("h200", "bf16", 989.4e12), ("a100", "bf16", 312e12)])
def test_a_large_product_runs_near_the_peak(device: str, dtype: str, peak: float):
    g = big_product(dtype)
    ns = estimate(g, g.operations[0], DEVICES[device]).ns
    rate = 2 * 8192**3 / (ns * 1e-9)
    assert 0.5 * peak < rate < 0.8 * peak


def test_a_large_sum_runs_at_the_bandwidth():
    g = graph_of("aten.add.Tensor", ["bf16[33554432]"] * 2, ["bf16[33554432]"], (Ref(0), Ref(1)))
    for name, device in DEVICES.items():
        if name in POWER:  # their times count no memory traffic
            continue
        ns = estimate(g, g.operations[0], device).ns
        rate = 3 * 2 * 33554432 / (ns * 1e-9)
        assert 0.7 * device.bandwidth < rate <= device.bandwidth, name


def test_order_of_devices():
    g = big_product("bf16")
    times = {name: estimate(g, g.operations[0], device).ns for name, device in DEVICES.items()}
    assert times["h200"] <= times["h100"] < times["a100"] < times["cpu"]


def test_an_empty_operation_costs_its_launch():
    g = graph_of("aten.add.Tensor", ["f32[0]", "f32[0]"], ["f32[0]"], (Ref(0), Ref(1)))
    assert estimate(g, g.operations[0], DEVICES["h200"]).ns == DEVICES["h200"].launch_ns


def test_an_expanded_argument_is_read_once_and_a_table_in_part():
    wide = graph_of("aten.neg", ["f32[4096,4096]{0,1}"], ["f32[4096,4096]"], (Ref(0),))
    full = graph_of("aten.neg", ["f32[4096,4096]"], ["f32[4096,4096]"], (Ref(0),))
    device = DEVICES["h200"]
    assert estimate(wide, wide.operations[0], device).ns < estimate(full, full.operations[0], device).ns
    g = graph_of("aten.embedding", ["f32[1000000,64]", "i64[8]"], ["f32[8,64]"], (Ref(0), Ref(1)))
    assert estimate(g, g.operations[0], device).ns < device.launch_ns + 100


def test_workspace_rules():
    scattered = graph_of("aten.bmm", ["f32[4,8,6]{1,192,32}", "f32[4,6,5]"], ["f32[4,8,5]"], (Ref(0), Ref(1)))
    assert workspace(scattered, scattered.operations[0], "cpu") == 4 * 8 * 6 * 4
    plain = graph_of("aten.bmm", ["f32[4,8,6]{48,1,8}", "f32[4,6,5]"], ["f32[4,8,5]"], (Ref(0), Ref(1)))
    assert workspace(plain, plain.operations[0], "cpu") == 0
    g = graph_of("aten.embedding_dense_backward", ["bf16[512,64]", "i64[512]"], ["bf16[99,64]"], (Ref(0), Ref(1), 99))
    assert workspace(g, g.operations[0], "cuda") >= 4 * 8 * 512


def test_views_cost_nothing_and_other_operations_at_least_one():
    g = graph_of("aten.view", ["f32[4,4]"], ["f32[16]"], (Ref(0), (16,)), view=True)
    op = costed(g, "cpu").operations[0]
    assert (op.ns, op.workspace) == (0, 0)
    g = graph_of("aten.neg", ["f32[1]"], ["f32[1]"], (Ref(0),))
    assert costed(g, "cpu").operations[0].ns >= 1


def test_an_unknown_device_is_named_with_the_known_ones():
    g = graph_of("aten.neg", ["f32[1]"], ["f32[1]"], (Ref(0),))
    with pytest.raises(ProfileError, match=r"'v100'[\s\S]*a100, a72, b200, cpu, h100, h200"):
        costed(g, "v100")
    with pytest.raises(ProfileError, match="leave the profile out"):
        costed(g, "cpu", "p.json")


def test_signature_is_readable():
    g = graph_of(
        "aten.addmm",
        ["f32[7]", "f32[3,5]", "f32[5,7]{1,5}"],
        ["f32[3,7]"],
        (Ref(0), Ref(1), Ref(2)),
        kwargs={"beta": 2},
    )
    assert signature(g, g.operations[0]) == "aten.addmm(f32[7], f32[3,5], f32[5,7]{1,5}, beta=2)"
    g = graph_of("aten.mul.Tensor", ["f32[7]"], ["f32[7]"], (Ref(0), Ref(0)))
    assert signature(g, g.operations[0]) == "aten.mul.Tensor(f32[7], &0)"
    g = graph_of("aten.full", [], ["f32[2]"], ((2,), {"float": "-inf"}), kwargs={"dtype": {"dtype": "f32"}})
    assert signature(g, g.operations[0]) == 'aten.full([2], {"float":"-inf"}, dtype={"dtype":"f32"})'


def test_kernels_of_attention_reach_shares_of_their_own():
    types, args = ["bf16[2,16,2048,128]"] * 3, (Ref(0), Ref(1), Ref(2), 0.0, True)

    def share(kernel: str, device: str) -> float:
        graph = graph_of(f"aten._scaled_dot_product_{kernel}", types, types[:1], args)
        about = DEVICES[device]
        ns = estimate(graph, graph.operations[0], about).ns - about.launch_ns
        return flops(graph) / (about.matrix["bf16"] * ns * 1e-9)

    assert share("flash_attention", "h100") == pytest.approx(0.33, rel=1e-3)
    assert share("flash_attention", "h200") == pytest.approx(0.33, rel=1e-3)
    assert share("flash_attention_for_cpu", "h100") == pytest.approx(0.65, rel=1e-3)
    assert share("flash_attention", "a100") == pytest.approx(0.7, rel=1e-3)
