"""Small files that stand for very much are refused in bounded time and memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from remate.inspect.analysis import open_text
from remate_runtime.errors import ScheduleError
from remate_runtime.step import reruns

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


def test_reruns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reruns, "MAX_RERUNS", 10_000)
    entry = '{"rerun": ["all", "all", "all", "all"], "before": "all"}'
    several = refusal(doubled(10, LEAF % "", f', "statements": [{", ".join([entry] * 50)}]'))
    assert (several.code, several.where) == ("R072", "/statements")
    one = entry.replace('"all", ', '"all", ' * 30, 1)
    assert refusal(doubled(10, LEAF % "", f', "statements": [{one}]')).where == "/statements/0/rerun"


def test_reruns_in_a_block_of_many_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reruns, "MAX_RERUNS", 10_000)
    names = ", ".join(['"f"'] * 100)
    plan = f', "plans": {{"p": [{{"rerun": [{names}], "before": "b"}}]}}'
    data = doubled(8, LEAF % plan).replace(b'"block": "b8"', b'"block": "b8", "plan": "p"')
    assert refusal(data).code == "R072"


def test_a_fault_in_every_instance() -> None:
    error = refusal(doubled(12, '{"inputs": {"x": "f32[2]"}, "forward": []}'))
    assert len(error.faults) <= 100
    assert error.code == "R034"


def test_a_misspelling_in_every_rerun() -> None:
    entry = '{"rerun": ["all.l.l.l.l.l.l.l.l.l.l.f"], "before": "all.l.l.l.l.l.l.l.l.l.l.bb"}'
    error = refusal(doubled(10, LEAF % "", f', "statements": [{", ".join([entry] * 2000)}]'))
    assert len(error.faults) <= 100
    assert error.code == "R044"


def test_an_instance_without_backward_is_no_point() -> None:
    leaf = '{"forward": [{"id": "f", "op": "aten.rand", "args": [[2]], "out": "f32[2]"}]}'
    error = refusal(doubled(1, leaf, ', "statements": [{"rerun": ["all"], "before": "all"}]'))
    assert error.code == "R044"
    assert "has no backward" in error.message
