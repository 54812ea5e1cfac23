"""Small files with very large expansions are refused in bounded time and memory."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remate.present.faults import FORMATS, render
from remate.schedule_tools.analysis import open_text
from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import layout, split_plan, statements
from remate_runtime.format import Schedule, limits, locate
from remate_runtime.format.density import density_fault
from remate_runtime.format.field_check import FieldCheck
from remate_runtime.format.limits import MAX_FAULTS
from remate_runtime.format.schedule import decoded
from remate_runtime.format.semantic_check import SemanticCheck
from remate_runtime.link import linker
from tools.fuzz.bombs import FAMILIES

EMPTY = (Path(__file__).parents[2] / "schema/corpus/valid/empty-program.json").read_text()
LEAF = """{"forward": [{"id": "f", "op": "aten.rand", "args": [[2]], "out": "f32[2]"}],
          "backward": [{"id": "b", "op": "aten.neg", "args": ["%%f"], "out": "f32[2]"}]%s}"""


def doubled(depth: int, leaf: str, extra: str = "") -> bytes:
    """A program of 2^depth instances of `leaf`, in blocks that each have two instances of the next."""
    blocks = [
        f'"b{k}": {{"instances": [{{"id": "l", "block": "b{k + 1}"}}, {{"id": "r", "block": "b{k + 1}"}}]}}'
        for k in range(depth)
    ]
    text = EMPTY.replace('"blocks": {}', f'"blocks": {{{", ".join(blocks)}, "b{depth}": {leaf}}}')
    return text.replace('"program": []', f'"program": [{{"id": "all", "block": "b0"}}]{extra}').encode()


def refusal(data: bytes) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        open_text(data)
    return caught.value


@pytest.mark.parametrize("depth", [18, 25, 31])
def test_instances(depth: int) -> None:
    tracemalloc.start()
    assert refusal(doubled(depth, LEAF % "")).code == "R072"
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


def test_recomputes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "MAX_RECOMPUTES", 10_000)
    entry = '{"recompute": ["all", "all", "all", "all"], "before": "all"}'
    several = refusal(doubled(10, LEAF % "", f', "statements": [{", ".join([entry] * 50)}]'))
    assert (several.code, several.where) == ("R072", "/statements")
    item = entry.replace('"all", ', '"all", ' * 30, 1)
    assert refusal(doubled(10, LEAF % "", f', "statements": [{item}]')).where == "/statements/0/recompute"


def test_recomputes_in_a_block_of_many_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "MAX_RECOMPUTES", 10_000)
    names = ", ".join(['"f"'] * 100)
    plan = f', "plans": {{"p": [{{"recompute": [{names}], "before": "b"}}]}}'
    data = doubled(8, LEAF % plan).replace(b'"block": "b8"', b'"block": "b8", "plan": "p"')
    assert refusal(data).code == "R072"


def test_a_fault_in_every_instance() -> None:
    error = refusal(doubled(12, '{"inputs": {"x": "f32[2]"}, "forward": []}'))
    assert len(error.faults) <= 100
    assert error.code == "R034"


def test_a_misspelling_in_every_recompute() -> None:
    entry = '{"recompute": ["all.l.l.l.l.l.l.l.l.l.l.f"], "before": "all.l.l.l.l.l.l.l.l.l.l.bb"}'
    error = refusal(doubled(10, LEAF % "", f', "statements": [{", ".join([entry] * 2000)}]'))
    assert len(error.faults) <= 100
    assert error.code == "R044"


def test_an_instance_without_backward_is_no_point() -> None:
    leaf = '{"forward": [{"id": "f", "op": "aten.rand", "args": [[2]], "out": "f32[2]"}]}'
    error = refusal(doubled(1, leaf, ', "statements": [{"recompute": ["all"], "before": "all"}]'))
    assert error.code == "R044"
    assert "has no backward" in error.message


def faults_of(data: bytes) -> tuple[ScheduleError, ...]:
    try:
        open_text(data)
    except ScheduleError as error:
        return error.faults
    return ()


@pytest.mark.slow("names of runs", "a small file of 32,768 operations", "a small file of very many recomputations")
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_accepted_or_refused_with_places(name: str) -> None:
    data = FAMILIES[name](3_000)
    faults = faults_of(data)
    assert len(faults) <= MAX_FAULTS
    for fault in faults:
        assert fault.line >= 1, fault
    for form in FORMATS:
        render(form, "s.json", data, faults)


# What stands for more than its size up to the limits of a step
EXPANDING = [name for name in FAMILIES if name.startswith(("a small file", "instances of", "views made"))]
GROWING = [name for name in FAMILIES if name not in EXPANDING]


@pytest.mark.slow("names of runs", "many names that differ little", "many blocks", "expressions that grow")
@pytest.mark.parametrize("name", GROWING)
def test_work_grows_with_the_size_and_no_faster(name: str) -> None:
    """Measured in function calls: a file four times as large takes less than seven times the calls (plus a constant)."""
    small, large = (calls(lambda size=size: faults_of(FAMILIES[name](size))) for size in (6_000, 24_000))
    assert large < 7 * small + 20_000


_SCALE = 8  # the limits of expanded steps, the file and its memory are this many times smaller than in use


@pytest.fixture
def smaller_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (layout, split_plan, statements, linker):
        for name in ("MAX_OPERATIONS", "MAX_ITEMS", "MAX_RECOMPUTES", "MAX_EVENTS"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(limits, name) // _SCALE)


@pytest.mark.slow("views made again and again", "instances of many recomputations of views")
@pytest.mark.usefixtures("smaller_limits")
@pytest.mark.parametrize("name", EXPANDING)
def test_what_a_file_stands_for_is_bounded(name: str) -> None:
    data = FAMILIES[name](400_000 // _SCALE)
    tracemalloc.start()
    faults = faults_of(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [fault.code for fault in faults] == ["R072"]
    assert peak < (120 << 20) // _SCALE


@pytest.mark.slow
def test_a_small_file_of_many_operations_is_accepted() -> None:
    assert not faults_of(FAMILIES["a small file of 32,768 operations"](0))


def calls(work: Callable[[], Any]) -> int:
    """Number of Python and C function calls."""
    work()  # what is made once and kept
    count = 0

    def called(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.quick("lines")
@pytest.mark.parametrize(
    "name",
    [
        "empty objects as program",
        "empty objects as argument",
        "objects as argument",
        "texts as argument",
        "many keys",
        "many parameters",
        "runs of parameters",
        "lines",
        "wide characters",
        "the same key again, elsewhere legal",
        "many instances of nothing",
    ],
)
def test_memory_stays_within_ten_times_the_file(name: str) -> None:
    data = FAMILIES[name](1_000_000)
    faults_of(b"")
    tracemalloc.start()
    faults = faults_of(data)
    if faults:
        render("text", "s.json", data, faults)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * len(data) + (16 << 20)


@pytest.mark.quick("arrays and objects")
@pytest.mark.parametrize(
    ("name", "what"),
    [("empty objects as argument", "arrays and objects"), ("texts as argument", "texts"), ("many keys", "keys")],
)
def test_a_text_too_dense_for_its_size_is_refused_before_it_is_read(name: str, what: str) -> None:
    dense = FAMILIES[name](1_500_000)
    (fault,) = faults_of(dense)
    assert (fault.code, fault.line) == ("R072", 1)
    assert f" {what}, more than" in fault.message
    tracemalloc.start()
    assert density_fault(dense) is not None
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_what_stands_inside_texts_does_not_count() -> None:
    within_texts = FAMILIES["one long text"](0).replace(b'""', b'"' + b'[{:,\\"' * 200_000 + b'"')
    assert len(within_texts) > 1_000_000
    assert density_fault(within_texts) is None


@pytest.mark.slow
def test_a_map_that_no_model_needs() -> None:
    for name in ("many inputs that are not bound", "many parameters", "many plans", "many bindings of nothing"):
        assert [fault.code for fault in faults_of(FAMILIES[name](2_200_000))] == ["R072"]


@pytest.mark.parametrize("name", ["many empty recomputations", "bad types", "outputs that are no tree"])
def test_the_search_ends_at_the_hundredth_fault(name: str) -> None:
    """A file ten times as long takes the same number of calls."""

    def check(size: int) -> int:
        schedule = msgspec.json.decode(FAMILIES[name](size), type=Schedule, dec_hook=decoded)
        assert len(SemanticCheck().schedule(schedule)) == MAX_FAULTS
        return calls(lambda: SemanticCheck().schedule(schedule))

    assert check(200_000) < check(20_000) + 100


@pytest.mark.slow("unknown statements")
@pytest.mark.parametrize("name", ["numbers as program", "many keys", "unknown statements"])
def test_the_search_for_faults_of_fields_ends_there_too(name: str) -> None:
    def check(size: int) -> int:
        tree = json.loads(FAMILIES[name](size))
        return calls(lambda: FieldCheck(SemanticCheck().struct).walk(tree, Schedule))

    assert check(200_000) < check(20_000) + 100


def test_places_of_faults_in_a_file_of_very_many_lines() -> None:
    data = FAMILIES["lines"](300_000)
    tracemalloc.start()
    located = locate(data, faults_of(data))
    render("text", "s.json", data, located)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert max(fault.line for fault in located) == 300_000 + 3


def test_namespaces_are_few() -> None:
    tree = json.loads(EMPTY)
    tree["namespaces"] = [f"library{at}" for at in range(2000)]
    with pytest.raises(ScheduleError, match=r"R072.*over 1024 namespaces"):
        open_text(json.dumps(tree).encode())
