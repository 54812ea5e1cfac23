"""Each rule of `schema/rows-1.json`, one operator at a time: tiles beside the operator on all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import FlatSplit, Graph, Op, Ref, Value, split_step
from remate_runtime.format.tensor_type import TensorType
from remate_runtime.operator_calls import overload
from remate_runtime.operator_calls.overloads import literal
from remate_runtime.operators import RANDOM, VIEWS
from remate_runtime.operators.rows import ROWS
from tools.row_rules import FILE, text

N = 7  # rows: tiles of 2, 2 and 3
CPU = torch.device("cpu")
KINDS = {torch.float32: "f32", torch.int64: "i64", torch.bool: "bool"}


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (N, 5)))


def positive() -> torch.Tensor:
    return torch.rand(N, 5) + 0.5


def flags() -> torch.Tensor:
    return torch.rand(N, 5) > 0.5


def words(count: int = 6) -> torch.Tensor:
    return torch.randint(0, count, (N,))


def loss_arguments(reduction: int) -> tuple[Any, ...]:
    target = words()
    target[2] = -100
    return torch.log_softmax(x(N, 6), 1), target, None, reduction, -100


UNARY = "abs clone cos elu erf exp gelu hardsigmoid hardswish hardtanh leaky_relu mish neg relu sigmoid silu sin softplus tanh"
UNARY_POSITIVE = "log log1p reciprocal rsqrt sqrt"
WITH_SCALAR = """add.Scalar clamp clamp_max clamp_min div.Scalar eq.Scalar ge.Scalar gt.Scalar le.Scalar lt.Scalar mul.Scalar
ne.Scalar rsub.Scalar sub.Scalar"""
BINARY = """add.Tensor div.Tensor eq.Tensor ge.Tensor gt.Tensor le.Tensor lt.Tensor maximum minimum mul.Tensor ne.Tensor
rsub.Tensor sub.Tensor gelu_backward hardsigmoid_backward hardswish_backward mish_backward sigmoid_backward silu_backward
tanh_backward"""
ON_FLAGS = "bitwise_and.Tensor bitwise_or.Tensor logical_and logical_or"
SAMPLES: dict[str, Callable[[], tuple[Any, ...]]] = {
    **dict.fromkeys(UNARY.split(), lambda: (x(),)),
    **dict.fromkeys(UNARY_POSITIVE.split(), lambda: (positive(),)),
    **dict.fromkeys(WITH_SCALAR.split(), lambda: (x(), 0.5)),
    **dict.fromkeys(BINARY.split(), lambda: (x(), x())),
    **dict.fromkeys(ON_FLAGS.split(), lambda: (flags(), flags())),
    "pow.Tensor_Scalar": lambda: (positive(), 2.5),
    "bitwise_not": lambda: (flags(),),
    "logical_not": lambda: (flags(),),
    "_to_copy": lambda: (x(),),
    "masked_fill.Scalar": lambda: (x(), flags(), 0.0),
    "where.self": lambda: (flags(), x(), x(5)),
    "threshold_backward": lambda: (x(), x(), 0.0),
    "native_dropout_backward": lambda: (x(), flags(), 2.0),
    "hardtanh_backward": lambda: (x(), x(), -1.0, 1.0),
    "leaky_relu_backward": lambda: (x(), x(), 0.01, False),
    "elu_backward": lambda: (x(), 1.0, 1.0, 1.0, False, x()),
    "softplus_backward": lambda: (x(), x(), 1.0, 20.0),
    "_softmax": lambda: (x(), 1, False),
    "_log_softmax": lambda: (x(), -1, False),
    "_softmax_backward_data": lambda: (x(), torch.softmax(x(), 1), 1, {"dtype": "f32"}),
    "_log_softmax_backward_data": lambda: (x(), torch.log_softmax(x(), 1), 1, {"dtype": "f32"}),
    "embedding": lambda: (x(6, 4), words()),
    "bmm": lambda: (x(N, 3, 4), x(N, 4, 2)),
    "mm": lambda: (x(N, 5), x(5, 4)),
    "addmm": lambda: (x(4), x(N, 5), x(5, 4)),
    "sum.dim_IntList": lambda: (x(N, 5, 3), (1,), False),
    "mean.dim": lambda: (x(N, 5, 3), (-1,), True),
    "convolution": lambda: (x(N, 3, 6, 6), x(4, 3, 3, 3), x(4), (1, 1), (1, 1), (1, 1), False, (0, 0), 1),
    "convolution_backward": lambda: (
        *(x(N, 4, 6, 6), x(N, 3, 6, 6), x(4, 3, 3, 3), (4,), (1, 1), (1, 1), (1, 1), False, (0, 0), 1),
        (True, True, True),
    ),
    "cat": lambda: ((x(N, 2), x(N, 3)), 1),
    "native_layer_norm": lambda: (x(N, 3, 4), (4,), x(4), x(4), 1e-5),
    "native_layer_norm_backward": lambda: (
        *(x(N, 3, 4), x(N, 3, 4), (4,), x(N, 3, 1), x(N, 3, 1), x(4), x(4)),
        (True, True, True),
    ),
    "native_group_norm": lambda: (x(N, 4, 3, 3), x(4), x(4), N, 4, 9, 2, 1e-5),
    "native_group_norm_backward": lambda: (
        *(x(N, 4, 3, 3), x(N, 4, 3, 3), x(N, 2), x(N, 2), x(4), N, 4, 9, 2),
        (True, True, True),
    ),
    "avg_pool2d": lambda: (x(N, 2, 6, 6), (2, 2), (2, 2)),
    "avg_pool2d_backward": lambda: (x(N, 2, 3, 3), x(N, 2, 6, 6), (2, 2), (2, 2), (0, 0), False, True, None),
    "upsample_nearest2d": lambda: (x(N, 2, 3, 3), (6, 6)),
    "upsample_nearest2d_backward": lambda: (x(N, 2, 6, 6), (6, 6), (N, 2, 3, 3)),
    "upsample_bilinear2d": lambda: (x(N, 2, 3, 3), (6, 6), False),
    "upsample_bilinear2d_backward": lambda: (x(N, 2, 6, 6), (6, 6), (N, 2, 3, 3), False),
    "slice_backward": lambda: (x(N, 3), (N, 5), 1, 1, 4, 1),
    "amax": lambda: (x(N, 5, 3), (2,), True),
    "argmax": lambda: (x(N, 5), 1),
    "logsumexp": lambda: (x(N, 5), (1,)),
    "xlogy.Tensor": lambda: (positive(), positive()),
    "full": lambda: ((N, 5), 0.5),
    "new_full": lambda: (x(), (N, 5), 0.5),
    "new_zeros": lambda: (x(), (N, 5)),
    "ones": lambda: ((N, 5),),
    "zeros": lambda: ((N, 5),),
    "gather": lambda: (x(), 1, words(5)[:, None]),
    "scatter.src": lambda: (x(), 1, words(5)[:, None], x(N, 1)),
    "scatter.value": lambda: (x(), 1, words(5)[:, None], 2.0),
    "scatter_add": lambda: (x(), 1, words(5)[:, None], x(N, 1)),
    "binary_cross_entropy_with_logits": lambda: (x(), positive(), None, positive()[0], 0),
    "huber_loss": lambda: (x(), x(), 0, 0.5),
    "huber_loss_backward": lambda: (x(), x(), x(), 0, 0.5),
    "mse_loss": lambda: (x(), x(), 0),
    "mse_loss_backward": lambda: (x(), x(), x(), 0),
    "smooth_l1_loss": lambda: (x(), x(), 0),
    "smooth_l1_loss_backward": lambda: (x(), x(), x(), 0, 1.0),
    "nll_loss2d_forward": lambda: (x(N, 6, 2, 2), words(6)[:, None, None].expand(N, 2, 2), None, 1, -100),
    "nll_loss2d_backward": lambda: (torch.tensor(0.5), *SAMPLES["nll_loss2d_forward"](), torch.tensor(6.0)),
    "nll_loss_forward": lambda: loss_arguments(1),
    "nll_loss_backward": lambda: (torch.tensor(0.5), *loss_arguments(1), torch.tensor(6.0)),
    "native_dropout": lambda: (x(), 0.3, True),
    "bernoulli.p": lambda: (x(), 0.7),
}


def graph_of(operator: str, arguments: tuple[Any, ...], backward: bool) -> tuple[Graph, dict[int, torch.Tensor], Any]:
    """A step of one operation on these arguments, their tensors by value, and its results."""
    tensors: dict[int, torch.Tensor] = {}
    values: list[Value] = []

    def given(argument: Any) -> Any:
        if isinstance(argument, tuple):
            return tuple(map(given, argument))
        if not isinstance(argument, torch.Tensor):
            return argument
        tensors[len(values)] = argument
        values.append(Value(f"a{len(values)}", TensorType(KINDS[argument.dtype], tuple(argument.shape)), "input"))
        return Ref(len(values) - 1)

    args = tuple(map(given, arguments))
    torch.manual_seed(1)
    made = overload(operator)(*(literal(a, CPU) if isinstance(a, dict | tuple) else a for a in arguments))
    results = made if isinstance(made, tuple) else (made,)
    writes = tuple(range(len(values), len(values) + len(results)))
    values += [
        Value(f"o:{k}", TensorType(KINDS[one.dtype], tuple(one.shape)), "op", 0) for k, one in enumerate(results)
    ]
    op = Op(
        "o", operator, args, {}, tuple(tensors), writes, isinstance(made, tuple), operator in VIEWS, operator in RANDOM
    )
    gradients = tuple((0, v) for v in writes) if backward else ()
    start = 0 if backward else 1
    graph = Graph(tuple(values), (op,), start, () if backward else writes, gradients, (), tuple(range(len(values))))
    return graph, tensors, results


def run(graph: Graph, tensors: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The values of a step, its operations one after the other."""
    slots = dict(tensors)
    torch.manual_seed(1)

    def taken(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return slots[argument.value]
        if isinstance(argument, tuple) and any(isinstance(one, Ref) for one in argument):
            return [taken(one) for one in argument]
        return literal(argument, CPU)

    for op in graph.operations:
        made = overload(op.op)(*map(taken, op.args), **{k: taken(v) for k, v in op.kwargs.items()})
        for value, one in zip(op.writes, made if op.multiple else (made,), strict=True):
            assert value is not None
            slots[value] = one
            assert tuple(one.shape) == graph.values[value].type.shape
    return slots


def test_the_samples_are_of_all_operators_with_rules_and_the_file_is_what_the_tool_writes() -> None:
    assert {f"aten.{name}" for name in SAMPLES} == ROWS.operators.keys()
    assert FILE.read_bytes() == text()
    assert not ROWS.barriers.keys() & ROWS.operators.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_tiles_make_what_the_operator_makes(name: str) -> None:
    torch.manual_seed(0)
    operator = f"aten.{name}"
    graph, tensors, results = graph_of(operator, SAMPLES[name](), "sum" in ROWS.operators[operator].out)
    reference = list(results)
    if name.startswith("nll_loss"):
        pytest.skip("it follows the scores: tested with the operations that lead to them, in test_splits")
    made = split_step(graph, FlatSplit((0,), 3))
    slots = run(made.graph, tensors)
    found = [slots[v] for v in made.graph.outputs] or [slots[v] for _, v in made.graph.gradients]
    sums = ROWS.operators[operator].out
    for k, (one, expected) in enumerate(zip(found, reference, strict=True)):
        if ROWS.operators[operator].rounds or (sums and sums[k] == "sum"):
            torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(one, expected), name


@pytest.mark.parametrize(("operator", "why"), list(ROWS.barriers.items()))
def test_barriers_are_refused_by_name_and_reason(operator: str, why: str) -> None:
    graph, _, _ = graph_of("aten.relu", (x(),), False)
    op = Op("o", operator, graph.operations[0].args, {}, (0,), graph.operations[0].writes, False, False, False)
    barrier = Graph(graph.values, (op,), 1, graph.outputs, (), (), graph.root)
    with pytest.raises(ScheduleError, match="cannot be split along rows") as caught:
        split_step(barrier, FlatSplit((0,), 3))
    assert operator in str(caught.value)
    assert why in str(caught.value)


def summed_rows(graph: Graph) -> Graph:
    """The same step with an operation before, which says where rows are."""
    (op,), kind = graph.operations, graph.values[0].type
    values = (*graph.values[:1], *(Value(v.name, v.type, "op", 1) for v in graph.values[1:]), Value("r", kind, "op", 0))
    first = Op("r", "aten.relu", (Ref(0),), {}, (0,), (len(values) - 1,), False, False, False)
    last = Op("o", op.op, (Ref(len(values) - 1), *op.args[1:]), {}, (len(values) - 1,), op.writes, False, False, False)
    return Graph(values, (first, last), 2, graph.outputs, (), (), tuple(range(len(values))))


def test_a_sum_over_rows_in_forward_is_refused() -> None:
    graph, _, _ = graph_of("aten.sum.dim_IntList", (x(N, 5), (0,), False), False)
    graph = summed_rows(graph)
    with pytest.raises(ScheduleError, match="it sums over rows in forward"):
        split_step(graph, FlatSplit((0, 1), 3))
