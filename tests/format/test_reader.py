"""The reader's limits, its speed, and how it reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from remate_runtime.errors import ScheduleError
from remate_runtime.format.reader import decode, load
from remate_runtime.format.schedule import Operation, Schedule
from remate_runtime.format.writer import encode

VALID = Path(__file__).parents[2] / "schema/corpus/valid"


@pytest.fixture
def minimal() -> str:
    return (VALID / "minimal.json").read_text()


def faults(text: str | bytes) -> list[ScheduleError]:
    with pytest.raises(ScheduleError) as caught:
        decode(text)
    return list(caught.value.faults)


@pytest.mark.parametrize("name", ["missing.json", ".", "a\0b"])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ScheduleError, match="R000") as caught:
        load(f"{tmp_path}/{name}")
    assert caught.value.hint


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(ScheduleError, match="R000: '/dev/zero' cannot be read: a device"):
        load("/dev/zero")


def test_text_and_bytes_read_the_same(minimal: str) -> None:
    assert decode(minimal) == decode(minimal.encode())


def test_half_a_character_in_a_python_text(minimal: str) -> None:
    (fault,) = faults(minimal.replace("minimal", "mini\ud800"))
    assert (fault.code, fault.line, fault.column) == ("R001", 4, 16)


def test_all_faults_at_once_in_the_order_of_the_text(minimal: str) -> None:
    bad = minimal.replace('"op": ', '"opp": ').replace('"cpu"', '"tpu"')
    located = faults(bad)
    assert [fault.code for fault in located] == ["R013", *["R011", "R010"] * 8]
    assert located == sorted(located, key=lambda fault: (fault.line, fault.column))
    assert all(fault.hint == "did you mean op?" for fault in located[2::2])


def test_the_number_of_faults_is_bounded(minimal: str) -> None:
    operation = '{"id": "b", "op": "os.b", "out": "f32"},'
    bad = minimal.replace('"forward": [', '"forward": [' + operation * 500)
    assert len(faults(bad)) == 100
    with pytest.raises(ScheduleError) as caught:
        decode(bad)
    assert len(str(caught.value)) < 10_000
    assert "and 80 more faults" in str(caught.value)


def test_the_same_key_twice_beside_other_faults(minimal: str) -> None:
    bad = minimal.replace('"mm": 2000', '"mm": -1, "mm": -2', 1)
    assert [fault.code for fault in faults(bad)] == ["R003", "R013"]


def test_a_file_lists_the_namespaces_of_libraries(minimal: str) -> None:
    text = minimal.replace('"aten.exp"', '"mylib.exp"')
    assert [fault.code for fault in faults(text)] == ["R050"]
    listed = text.replace('"version": 1,', '"version": 1, "namespaces": ["mylib"],')
    assert decode(listed).blocks["All"].forward[2].op == "mylib.exp"
    assert [fault.code for fault in faults(listed.replace('"mm": 2000', '"mm": -1', 1))] == ["R013"]
    for bad in ("aten", "my.lib", "", "my\u202elib"):
        (fault,) = faults(minimal.replace('"version": 1,', f'"version": 1, "namespaces": [{json.dumps(bad)}],'))
        assert (fault.code, fault.where) == ("R014", "/namespaces/0")


def test_a_later_revision_reads_if_it_uses_nothing_new(minimal: str) -> None:
    assert decode(minimal.replace('"version": 1,', '"version": 1, "revision": 7,')).revision == 7


def test_a_newer_version_is_the_only_fault(minimal: str) -> None:
    bad = minimal.replace('"version": 1', '"version": 3, "shape": []')
    (fault,) = faults(bad)
    assert fault.code == "R005"
    assert "version 3; this reader knows versions up to 1" in fault.message


@pytest.fixture(scope="module")
def large() -> Schedule:
    base = load(VALID / "multiple-outputs.json")
    block = base.blocks["LayerNorm"]
    many = tuple(
        Operation(
            id=f"h.{k // 20}.attn.native_layer_norm_{k}",
            op="aten.native_layer_norm",
            args=(f"%h.{k // 20}.x", [8], "%weight", "%bias", 1e-05),
            out=("f32[4,8]", "f32[4,1]", None),
            source="model.py:Block.forward+12",
        )
        for k in range(10_000)
    )
    costs = {"LayerNorm": {op.id: 40_000 + k for k, op in enumerate(many)}}
    return replace(base, blocks={"LayerNorm": replace(block, forward=many)}, costs=costs)


def test_ten_thousand_operations_read_and_write(large: Schedule) -> None:
    assert decode(encode(large)) == large


def test_faults_in_ten_thousand_operations_are_found(large: Schedule) -> None:
    assert faults(encode(large).replace(b'"op"', b'"opp"'))


def test_reading_needs_no_torch() -> None:
    code = (
        "import sys, remate_runtime.format.reader, remate_runtime.format.writer, remate_runtime.flat_step.expansion;"
        "import remate_runtime.link.simulator;"
        "print([name for name in ('torch', 'pyomo', 'jsonschema', 'numpy') if name in sys.modules])"
    )
    where = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": where}
    )
    assert done.stdout.strip() == "[]", done.stderr
