"""Which operators a file may name: those on the list; those that need a permission, with it; no other, with the
reason."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from remate_runtime import apply
from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import expand
from remate_runtime.format.reader import decode
from remate_runtime.format.schedule import Constant
from remate_runtime.format.writer import encode
from remate_runtime.operator_calls import needed
from remate_runtime.operators import OPERATORS, PERMISSION, REFUSED, VIEWS, permissible, permission, refusal

from .strangers import edited, inputs, line, model

WRITE_UNSEEN = [
    ("aten.native_batch_norm", ("%x", None, None, "%a.bias", "%a.bias", True, 0.1, 1e-5)),
    ("aten.cudnn_batch_norm", ("%x", "%a.bias", None, "%a.bias", "%a.bias", True, 0.1, 1e-5)),
    ("aten.batch_norm_update_stats", ("%x", "%a.bias", "%a.bias", 0.1)),
]
ALIAS_UNSEEN = [
    ("aten.conj_physical", ("%a.weight",)),
    ("aten.type_as", ("%a.weight", "%x")),
    ("aten.dropout", ("%a.weight", 0.5, False)),
    ("aten.feature_dropout", ("%a.weight", 0.5, False)),
    ("aten.alpha_dropout", ("%a.weight", 0.5, False)),
    ("aten.einsum", ("ij->ij", ["%a.weight"])),
    ("aten.sum_to_size", ("%a.weight", [32, 8])),
    ("aten.atleast_1d", ("%a.weight",)),
    ("aten.lift", ("%a.weight",)),
    ("aten.contiguous", ("%a.weight",)),
    ("aten.reshape", ("%a.weight", [32, 8])),
    ("aten.to.dtype", ("%a.weight", {"dtype": "f32"})),
    ("aten.expand_as", ("%a.weight", "%a.weight")),
    ("aten.resolve_conj", ("%a.weight",)),
    ("prims.device_put", ("%a.weight", {"device": "main"})),
]
OTHERS = [
    ("aten.from_file", ("/etc/passwd",)),
    ("aten.save", ("%x", "/tmp/x")),
    ("aten.manual_seed", (1,)),
    ("aten.upper", ("text",)),
    ("aten.keys.Tensor", ("%x",)),
    ("aten._test_warn_in_autograd", ("%x",)),
    ("aten._foreach_zero", (["%x"],)),
    ("aten.set.source_Tensor", ("%x", "%a.weight")),
    ("aten.resize", ("%x", [1000000])),
    ("aten.quantize_per_tensor", ("%x", 1.0, 0, {"dtype": "i8"})),
    ("prim.RaiseException", ("%x",)),
    ("profiler._record_function_enter_new", ("text",)),
]


@pytest.mark.parametrize(
    ("op", "args"), [*WRITE_UNSEEN, *ALIAS_UNSEEN, *OTHERS], ids=lambda v: v if isinstance(v, str) else ""
)
def test_what_is_not_listed_is_refused_when_the_file_is_read(op: str, args: tuple) -> None:
    live, schedule = model(), edited(line(op, *args, out="f32[32,8]"))
    before = [p.detach().clone() for p in live.parameters()]
    with pytest.raises(ScheduleError) as read:
        decode(encode(schedule))
    assert read.value.code == "R050"
    assert read.value.where.endswith("/forward/0/op")
    assert read.value.line
    assert op.partition(".")[0] in read.value.message
    assert read.value.hint
    with pytest.raises(ScheduleError) as applied:  # a Schedule made in Python meets the same list
        apply(live, schedule)
    assert applied.value.code in ("R050", "R051", "R052")
    assert all(torch.equal(a, b) for a, b in zip(before, live.parameters(), strict=True))


def test_a_permission_does_not_open_what_is_refused() -> None:
    for name in ("aten", "aten.from_file", "aten.contiguous", "aten.native_batch_norm"):
        assert not permissible(name)
        with pytest.raises(ScheduleError, match=r"R014 at .*/namespaces/0"):
            decode(encode(edited(namespaces=[name])))
    schedule = edited(line("aten.contiguous", "%a.weight", out="f32[32,8]"))
    with pytest.raises(ScheduleError, match="R050"):
        apply(model(), schedule, namespaces=("aten", "aten.contiguous"))


def test_a_permission_by_name() -> None:
    schedule = edited(
        line("aten.segment_reduce", "%x", "sum", out="f32[2,8]", lengths="%lengths"),
        constants={"lengths": Constant(type="i64[2]", data=(1, 3))},
        namespaces=["aten.segment_reduce"],
    )
    assert decode(encode(schedule)) is not None
    with pytest.raises(ScheduleError) as hidden:
        decode(encode(edited(line("aten.segment_reduce", "%x", "sum", out="f32[2,8]", axis=0))))
    assert (hidden.value.code, hidden.value.hint) == ("R050", 'list "aten.segment_reduce" in "namespaces"')
    with pytest.raises(ScheduleError, match=r"'model.bad'|needs a permission"):
        apply(model(), replace(schedule, namespaces=()))
    with pytest.raises(ScheduleError) as refused:
        apply(model(), schedule)
    assert refused.value.code == "R050"
    assert "namespaces=('aten.segment_reduce',)" in refused.value.hint
    assert "--allow aten.segment_reduce" in refused.value.hint
    apply(model(), schedule, namespaces=("aten.segment_reduce",))(inputs()).sum().backward()
    assert needed(expand(schedule).graph) == ("aten.segment_reduce",)


def test_the_names_that_one_may_have_meant() -> None:
    with pytest.raises(ScheduleError) as caught:
        decode(encode(edited(line("aten.sofplus", "%x", out="f32[4,8]"))))
    assert "aten.softplus" in caught.value.hint


def test_the_lists_do_not_contradict_each_other() -> None:
    assert not OPERATORS & PERMISSION.keys()
    assert not (OPERATORS | PERMISSION.keys()) & REFUSED.keys()
    for name in OPERATORS:
        assert not refusal(name)
        assert not permission(name)
    for name in PERMISSION:
        assert permission(name) == name
    for op, _ in ALIAS_UNSEEN:
        assert op not in OPERATORS
        assert op not in VIEWS or op.startswith("prims.")
