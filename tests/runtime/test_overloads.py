"""Operators and literals of a file: only what is listed, and the static tables agree with the live operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from remate_runtime import apply
from remate_runtime.errors import BindError, ScheduleError
from remate_runtime.flat_step.graph import Op, Ref
from remate_runtime.format.fingerprints import fingerprint
from remate_runtime.format.tensor_type import parse_type
from remate_runtime.operator_calls.overloads import (
    check_kernels,
    check_operator,
    constant,
    described,
    in_place,
    kernel,
    literal,
    over_the_second,
    overload,
)
from remate_runtime.operators.tables import COPIED, IN_PLACE, OPERATORS, RANDOM, VIEWS

from .small import Mlp, data
from .stepping import schedule_of


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("aten.no_such_thing", "R051"),
        ("aten.add.NoSuch", "R051"),
        ("aten.__class__", "R051"),
        ("aten.add.__call__", "R051"),
        ("aten.add._schema", "R051"),
        ("aten._dir", "R051"),
        ("aten.name", "R051"),
        ("aten", "R051"),
        ("aten.add.Tensor.x", "R051"),
        ("aten.add Tensor", "R051"),
        ("os.system", "R050"),
        ("profiler._record_function_enter", "R050"),
        ("aten.add_.Tensor", "R052"),
        ("aten.add.out", "R052"),
        ("aten.from_file", "R050"),
        ("aten.contiguous", "R050"),
        ("aten._ctc_loss", "R050"),
        ("prims.device_put", "R050"),
    ],
)
def test_refused_names(name, code):
    with pytest.raises(ScheduleError) as caught:
        overload(name)
    assert caught.value.code == code
    assert caught.value.hint


def test_exact_overloads():
    assert overload("aten.add.Tensor") is torch.ops.aten.add.Tensor
    assert overload("aten.addmm") is torch.ops.aten.addmm.default
    assert overload("aten.__lshift__.Tensor") is torch.ops.aten.__lshift__.Tensor


def test_namespaces_of_trusted_libraries():
    library = torch.library.Library("remate_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    with pytest.raises(ScheduleError, match=r"R050.*\n.*namespaces=\('remate_test',\)"):
        overload("remate_test.twice")
    assert overload("remate_test.twice", ("remate_test",)).name() == "remate_test::twice"
    library.define("noise(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    with pytest.raises(ScheduleError, match="draws random numbers"):
        check_operator(_op("remate_test.noise", (Ref(0),)), overload("remate_test.noise", ("remate_test",)))


def _op(name: str, args: tuple, writes: tuple = (1,), multiple: bool = False, **kwargs) -> Op:
    return Op("x", name, args, kwargs, (0,), writes, multiple, name in VIEWS, name in RANDOM)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (_op("aten.relu", (Ref(0), 1, 2)), "arguments do not fit"),
        (_op("aten.relu", (Ref(0),), nothing=1), "arguments do not fit"),
        (_op("aten.relu", (Ref(0),), multiple=True), "outputs do not fit"),
        (_op("aten.relu", (Ref(0),), writes=()), "outputs do not fit"),
        (_op("aten.native_dropout", (Ref(0), 0.5, True)), "outputs do not fit"),
        (_op("aten.native_dropout", (Ref(0), 0.5, True), (1,), True), "outputs do not fit"),
    ],
)
def test_operations_that_do_not_fit_their_operator(op, message):
    with pytest.raises(ScheduleError, match=message) as caught:
        check_operator(op, overload(op.op))
    assert caught.value.code == "R053"


def test_operations_that_fit():
    for op in (
        _op("aten.relu", (Ref(0),)),
        _op("aten.split.Tensor", (Ref(0), 2), (1, 2, 3), True),
        _op("aten.native_dropout", (Ref(0), 0.5, True), (1, None), True),
    ):
        check_operator(op, overload(op.op))


_X, _Y, _UP = torch.randn(4, 6), torch.randn(4, 6), torch.tensor([[2, 0, 3, 3, 1, 0]])
_WRITES: dict[str, tuple[Any, ...]] = {
    "aten.addcdiv": (_Y, _Y.exp()),
    "aten.addcmul": (_Y, _X),
    "aten.addmm": (_Y[:, :4], _X),
    "aten.clamp": (-0.5, 0.5),
    "aten.diagonal_scatter": (_Y[0, :4], 1),
    "aten.index_add": (1, _UP[0, :3], _Y[:, :3]),
    "aten.index_copy": (1, _UP[0, :3], _Y[:, :3]),
    "aten.index_put": ([None, _UP[0, :4]], _Y[:, :4], True),
    "aten.lerp.Scalar": (_Y, 0.3),
    "aten.lerp.Tensor": (_Y, _X),
    "aten.masked_fill.Scalar": (_Y > 0, 2.5),
    "aten.masked_scatter": (_X > 0, _Y),
    "aten.scatter.src": (0, _UP, _Y),
    "aten.scatter.value": (0, _UP, 2.5),
    "aten.scatter_add": (0, _UP, _Y),
    "aten.select_scatter": (_Y[:, 2], 1, -2),
    "aten.slice_scatter": (_Y[:, ::2], 1, 0, 9223372036854775807, 2),
}


def _in(dtype: torch.dtype, argument: Any) -> Any:
    """The argument with floating-point tensors in `dtype`."""
    if isinstance(argument, list | tuple):
        return type(argument)(_in(dtype, a) for a in argument)
    return argument.to(dtype) if isinstance(argument, torch.Tensor) and argument.is_floating_point() else argument


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", sorted(IN_PLACE))
def test_an_in_place_form_computes_the_same(name: str, dtype: torch.dtype) -> None:
    """The linker moves an argument to the front and calls the in-place form with the rest as they are."""
    plain = overload(name)
    needed = [a for a in plain._schema.arguments[1:] if not a.has_default_value() and not a.kwarg_only]
    for number in (1.5, 0.7, -0.1):
        rest = _WRITES.get(name) or tuple(_Y if isinstance(a.type, torch.TensorType) else number for a in needed)
        x, rest = _in(dtype, (_X, rest))
        onto = x.clone()
        result = in_place(_op(name, (Ref(0),)))(onto, *rest)
        assert result is onto or result.data_ptr() == onto.data_ptr()
        torch.testing.assert_close(onto, plain(x, *rest), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", sorted(name for name, form in IN_PLACE.items() if 1 in form.positions))
def test_the_second_argument_is_written_over_as_without(name: str, dtype: torch.dtype) -> None:
    """A scalar of higher precision on the left is not rounded."""
    for first in (torch.tensor(0.7), torch.tensor(-1.3, dtype=torch.float64), torch.tensor(3), _Y.to(dtype)):
        onto = _X.to(dtype)
        expected = overload(name)(first, onto)
        result = over_the_second(_op(name, (Ref(0), Ref(1))))(onto, first)
        assert result.data_ptr() == onto.data_ptr()
        assert torch.equal(onto, expected)


@pytest.mark.parametrize(("names", "test"), [(VIEWS, "view"), (RANDOM, "random")])
def test_tables_agree_with_the_live_schemas(names, test):
    for name in names & OPERATORS:
        live = overload(name)
        if test == "view":
            assert (
                any(r.alias_info for r in live._schema.returns)
                or name.startswith("aten._unsafe_view")
                or "unsafe_split" in name
            ), name
        else:
            assert torch.Tag.nondeterministic_seeded in live.tags, name


def test_literals():
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 1)
    assert literal({"dtype": "bf16"}, cpu) is torch.bfloat16
    assert literal({"device": "main"}, cuda) == cuda
    assert literal({"device": "cpu"}, cuda) == cpu
    assert literal({"layout": "strided"}, cpu) is torch.strided
    assert literal({"memory_format": "channels_last"}, cpu) is torch.channels_last
    assert literal({"float": "-inf"}, cpu) == float("-inf")
    assert literal({"complex": [1, 2]}, cpu) == 1 + 2j
    assert literal((1, (2, None), "mean"), cpu) == [1, [2, None], "mean"]


def test_constants():
    cpu = torch.device("cpu")
    assert torch.equal(constant(parse_type("i64[2,2]"), (1, 2, 3, 4), cpu), torch.tensor([[1, 2], [3, 4]]))
    strided = constant(parse_type("f32[2,2]{1,2}"), (1.0, {"float": "-inf"}, 3.0, 4.0), cpu)
    assert strided.stride() == (1, 2)
    assert strided[0, 1] == float("-inf")
    assert constant(parse_type("bool[]"), (True,), cpu).item() is True
    assert constant(parse_type("f32[0]"), (), cpu).numel() == 0


def test_descriptions_are_in_the_file_s_notation():
    assert described(torch.zeros(2, 3)) == "f32[2,3] on cpu"
    assert described(torch.zeros(2, 3, dtype=torch.bfloat16).t()) == "bf16[3,2]{1,3} on cpu"


def test_a_device_that_lacks_a_kernel():
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    with pytest.raises(BindError, match=rf"planned for cpu .*cuda does not have: {name}\n.*plan again"):
        check_kernels([(name, overload(name)), ("aten.mm", overload("aten.mm"))], torch.device("cuda"), "cpu")


def test_faults_of_a_file_name_their_lines(tmp_path):
    """Operators are looked up when a file meets a model: the faults of all of them are given, each with its place."""
    model, x = Mlp(), data(2, 8)
    schedule = schedule_of(model, (x,))
    (name, block), *_ = schedule.blocks.items()
    line = next(i for i, op in enumerate(block.forward) if op.op == "aten.tanh")
    operations = list(block.forward)
    operations[line] = replace(operations[line], args=(*operations[line].args, 1))
    operations[line - 1] = replace(operations[line - 1], kwargs={"x": 1})
    edited = replace(schedule, blocks={name: replace(block, forward=tuple(operations))})
    edited = replace(edited, model=replace(edited.model, fingerprint=fingerprint(edited)))
    edited.save(str(tmp_path / "s.json"))
    pointers = [("R053", f"/blocks/{name}/forward/{line - 1}"), ("R053", f"/blocks/{name}/forward/{line}")]
    for given, located in ((edited, False), (str(tmp_path / "s.json"), True)):
        with pytest.raises(ScheduleError) as caught:
            apply(model, given)
        assert [(fault.code, fault.where) for fault in caught.value.faults] == pointers
        assert all(bool(fault.line) == located for fault in caught.value.faults)


def test_no_result_holds_more_memory_than_it_fills():
    x, columns = torch.rand(8, 16), torch.rand(2, 16, 4).transpose(1, 2)
    cases = {
        "aten.mse_loss": (x, x, 1),
        "aten.smooth_l1_loss": (x, x, 1),
        "aten.soft_margin_loss": (x, x, 1),
        "aten.binary_cross_entropy": (x, x, None, 1),
        "aten.col2im": (columns, [5, 5], [2, 2], [1, 1], [0, 0], [1, 1]),
    }
    assert set(cases) == COPIED
    for name, args in cases.items():
        live = overload(name)
        outputs, plain = kernel(name, live)(*args), live(*args)
        assert torch.equal(outputs, plain), name
        assert outputs.untyped_storage().nbytes() == outputs.nbytes < plain.untyped_storage().nbytes(), name
    kept = kernel("aten.mse_loss", overload("aten.mse_loss"))(x, x, 0)
    assert kept.shape == x.shape


@pytest.mark.parametrize("text", ["f32[2,3]{0,1}", "f32[3,3]{2,2}", "i64[2]{1000}", "f32[0,4]{9,1}", "bool[2,1]{1,7}"])
def test_constants_with_gaps_and_overlaps(text):
    """A file may give a constant any strides; where elements share a place they are equal in files that capture
    wrote."""
    kind = parse_type(text)
    data = tuple([True] * kind.numel) if kind.dtype == "bool" else tuple([3] * kind.numel)
    tensor = constant(kind, data, torch.device("cpu"))
    assert tensor.stride() == kind.strides
    assert tensor.tolist() == torch.tensor(data).view(kind.shape).tolist()
