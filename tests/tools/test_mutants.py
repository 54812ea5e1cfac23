"""`tools/mutants.py`: which changes it makes, and that it reports the ones that no test notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import mutants

_SOURCE = '''"""1 < 2"""
LIMIT = 3


def within(a: "int", b: int) -> bool:
    """a + b"""
    assert a < 9
    if not a:
        raise ValueError(f"{a + 1}")
    # é: offsets are in bytes
    return a is not None and a - b <= 4
'''


def test_changes_are_of_operators_and_numbers_that_run() -> None:
    source = _SOURCE.encode()
    changes = {(m.old, m.new) for m in mutants.candidates("file.py", source)}
    assert changes == {("not ", ""), ("is not", "is"), ("and", "or"), ("-", "+"), ("<=", "<"), ("4", "5")}
    for mutant in mutants.candidates("file.py", source):
        changed = mutant.applied(source)
        compile(changed, "file.py", "exec")
        before, after = source.splitlines(), changed.splitlines()
        assert [i for i in range(len(before)) if before[i] != after[i]] == [mutant.line - 1]


@pytest.mark.slow
def test_every_room_and_its_tests_exist_and_have_changes() -> None:
    for room, tests in mutants.ROOMS.items():
        assert all((mutants.ROOT / test).exists() for test in tests), room
    taken = mutants.chosen(mutants.ROOT, list(mutants.ROOMS), 20, seed=0)
    assert len(taken) == 20
    assert {room for room, _ in taken} == set(mutants.ROOMS)
    assert taken == mutants.chosen(mutants.ROOT, list(mutants.ROOMS), 20, seed=0)
    assert taken != mutants.chosen(mutants.ROOT, list(mutants.ROOMS), 20, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("checked", [True, False])
def test_a_change_that_no_test_notices_is_reported(
    checked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "sums.py").write_text("def twice(a):\n    return a + a\n")
    test = f"from room.sums import twice\n\ndef test_twice():\n    assert twice(2) == {4 if checked else 'twice(2)'}\n"
    (tmp_path / "test_sums.py").write_text(test)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "COPIED", ("room", "test_sums.py"))
    monkeypatch.setattr(mutants, "ROOMS", {"room": ("test_sums.py",)})
    assert mutants.main(["room", "--count", "1"]) == int(not checked)
    out = capsys.readouterr().out
    assert "room/sums.py:2  + → -" in out
    assert ("test_sums.py::test_twice" if checked else "SURVIVED") in out
    assert (tmp_path / "room" / "sums.py").read_text() == "def twice(a):\n    return a + a\n"
