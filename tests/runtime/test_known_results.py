"""Rules for the shapes of results: where one decides, torch infers the same from the same arguments."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from remate_runtime.flat_step import Graph, Op, Ref, Value
from remate_runtime.flat_step.known_results import _RULES, as_known
from remate_runtime.format.tensor_type import TensorType, contiguous
from remate_runtime.operator_calls import inferred, overload

from .test_row_rules import SAMPLES, graph_of, words, x

WIDE = TensorType("f32", (3, 4, 5), (1, 15, 3))  # a transposed tensor
VIEWS: dict[str, list[tuple[TensorType, tuple[Any, ...], TensorType]]] = {
    "view": [
        (TensorType("f32", (3, 4, 5)), ((12, 5),), TensorType("f32", (12, 5))),
        (TensorType("f32", (3, 4, 5)), ((2, -1),), TensorType("f32", (2, 30))),
        (WIDE, ((3, 4, 5, 1),), TensorType("f32", (3, 4, 5, 1), (1, 15, 3, 3))),
        (WIDE, ((3, 2, 2, 5),), TensorType("f32", (3, 2, 2, 5), (1, 30, 15, 3))),
    ],
    "_unsafe_view": [(TensorType("f32", (3, 4)), ((2, 6),), TensorType("f32", (2, 6)))],
    "t": [(TensorType("f32", (3, 4)), (), TensorType("f32", (4, 3), (1, 4)))],
    "transpose.int": [
        (WIDE, (0, 1), TensorType("f32", (4, 3, 5), (15, 1, 3))),
        (WIDE, (-1, 1), TensorType("f32", (3, 5, 4), (1, 3, 15))),
    ],
    "permute": [(WIDE, ((1, 2, 0),), TensorType("f32", (4, 5, 3)))],
    "expand": [
        (TensorType("f32", (3, 1)), ((2, -1, 4),), TensorType("f32", (2, 3, 4), (0, 1, 0))),
        (TensorType("f32", (4,)), ((3, 4),), TensorType("f32", (3, 4), (0, 1))),
    ],
    "unsqueeze": [(WIDE, (1,), TensorType("f32", (3, 1, 4, 5), (1, 60, 15, 3)))],
    "squeeze.dim": [(TensorType("f32", (3, 1, 4)), (1,), TensorType("f32", (3, 4)))],
    "slice.Tensor": [
        (TensorType("f32", (3, 8)), (1, 2, 7), TensorType("f32", (3, 5), (8, 1))),
        (TensorType("f32", (6, 8)), (0, 0, 1 << 62, 2), TensorType("f32", (3, 8), (16, 1))),
    ],
    "detach": [(WIDE, (), WIDE)],
}
MORE: dict[str, Callable[[], tuple[Any, ...]]] = {
    "_safe_softmax": lambda: (x(), -1),
    "tril": lambda: (x(), 1),
    "baddbmm": lambda: (x(7, 1, 2), x(7, 3, 4), x(7, 4, 2)),
    "embedding_dense_backward": lambda: (x(7, 4), words(), 6, -1, False),
    "scalar_tensor": lambda: (2.0,),
    "arange": lambda: (7,),
    "triu": lambda: (x(), 1),
}
OWN = {f"aten.{name}": make for name, make in (SAMPLES | MORE).items() if f"aten.{name}" in _RULES}


def of_view(name: str, base: TensorType, args: tuple[Any, ...], declared: TensorType) -> Graph:
    values = (Value("a", base, "input"), Value("o", declared, "op", 0))
    op = Op("o", f"aten.{name}", (Ref(0), *args), {}, (0,), (1,), False, True, False)
    return Graph(values, (op,), 1, (1,), (), (), (0, 0))


def steps() -> list[Graph]:
    torch.manual_seed(0)
    views = [of_view(name, *sample) for name, samples in VIEWS.items() for sample in samples]
    return [*(graph_of(name, make(), False)[0] for name, make in OWN.items()), *views]


def judged(graph: Graph) -> str:
    op = graph.operations[0]
    with torch.no_grad():
        return inferred._judge(graph, op, overload(op.op))


def test_each_rule_decides_a_sample() -> None:
    assert OWN.keys() == _RULES.keys()
    for graph in steps():
        op = graph.operations[0]
        assert judged(graph) == "", op
        assert as_known(graph, op), op


@pytest.mark.slow
def test_what_a_rule_takes_torch_takes() -> None:
    """Sizes, strides and literals are changed at random, in arguments and in results."""
    chance, taken, left = random.Random(0), 0, 0
    for graph in steps():
        for _ in range(150):
            changed = graph
            for _ in range(chance.randint(1, 3)):
                changed = edited(changed, chance)
            if not as_known(changed, changed.operations[0]):
                left += 1
                continue
            taken += 1
            assert judged(changed) == "", changed
    assert taken > 1000
    assert left > 1000


def edited(graph: Graph, chance: random.Random) -> Graph:
    """The step with another size of a value, of several values, or another literal."""
    (op,), kind = graph.operations, chance.random()
    numbers = [at for at, value in enumerate(graph.values) if value.type.shape]
    if kind < 0.3 or not numbers:
        return replace(graph, operations=(replace(op, args=_edited(op.args, chance)),))
    at = chance.choice(numbers)
    was, now = chance.choice(graph.values[at].type.shape), chance.choice((1, 1, 2, 3, 4, 5, 6, 7, 0))
    every = kind < 0.7
    values = list(graph.values)
    for number in numbers if every else [at]:
        type_ = values[number].type
        shape = tuple(now if n == was and (every or chance.random() < 0.5) else n for n in type_.shape)
        strides = type_.strides
        if chance.random() < 0.2:
            strides = tuple(chance.choice((0, 1, 2, 4, 15)) for _ in shape)
        strides = None if contiguous(shape, strides) else strides
        values[number] = replace(values[number], type=TensorType(type_.dtype, shape, strides))
    args = tuple(_with(argument, was, now) for argument in op.args) if every else op.args
    return replace(graph, values=tuple(values), operations=(replace(op, args=args),))


def _edited(argument: Any, chance: random.Random) -> Any:
    if isinstance(argument, tuple):
        at = chance.randrange(len(argument) or 1)
        return tuple(_edited(each, chance) if k == at else each for k, each in enumerate(argument))
    if type(argument) is int:
        return chance.choice((argument + 1, argument - 1, -1, 0, 3, 7))
    return (not argument) if type(argument) is bool else argument


def _with(argument: Any, was: int, now: int) -> Any:
    if isinstance(argument, tuple):
        return tuple(_with(each, was, now) for each in argument)
    return now if type(argument) is int and argument == was else argument
