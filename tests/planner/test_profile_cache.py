"""The user's cache of measured costs: the same model planned again gives the same bytes; nothing wrong with it
matters."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

import remate
from remate.errors import ProfileCacheWarning
from remate.profile import cache, measured
from remate.profile.cost import Cost
from remate_runtime.format import Schedule, encode

DEVICE = measured.device_name(torch.device("cpu"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new, empty cache for every test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    return tmp_path


def plan(**options: object) -> Schedule:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)], torch.nn.Tanh())
    return remate.plan(model, (torch.rand(4, 8),), budget="100%", **options)  # type: ignore[arg-type]


def refuse(*_: object) -> Cost:
    raise AssertionError("measured again")


def test_planned_again_the_bytes_are_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = plan()
    assert cache.path_for(DEVICE).is_relative_to(home)
    monkeypatch.setattr(measured, "measure", refuse)
    assert encode(plan()) == encode(first)
    assert first.solve.profile


def test_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = plan()
    monkeypatch.setattr(measured, "measure", lambda *_: Cost(ns=123))
    assert plan() == first
    again = plan(measure_again=True)
    assert again.solve.profile != first.solve.profile
    assert plan() == again


def test_without_the_cache(home: Path) -> None:
    plan(cache=False)
    plan(profile=home / "p.json")
    assert [path.name for path in home.iterdir()] == ["p.json"]


@pytest.mark.slow("{", "1}}}", "\\xff\\x00", '{"format": "other"}')
@pytest.mark.parametrize("text", [b"", b"{", b'{"format": "other"}', b"\xff\x00", b'{"costs": {"a": {"ns": -1}}}'])
def test_a_damaged_cache_is_said_and_measured_again(text: bytes) -> None:
    plan()
    path = cache.path_for(DEVICE)
    whole = path.read_bytes()
    path.write_bytes(text)
    with pytest.warns(ProfileCacheWarning, match=r"is not a profile.*; the costs are measured again"):
        second = plan()
    assert second.solve.cost == "measured"
    assert path.read_bytes().count(b"\n") == whole.count(b"\n")
    assert plan() == second


def test_another_machine_s_file_is_not_used() -> None:
    plan()
    path = cache.path_for(DEVICE)
    path.write_bytes(path.read_bytes().replace(b'"device": "', b'"device": "other '))
    with pytest.warns(ProfileCacheWarning, match="measured on 'other"):
        plan()


def test_a_cache_that_cannot_be_written(home: Path) -> None:
    (home / "remate").write_text("a file where the folder should be")
    with pytest.warns(ProfileCacheWarning, match="not kept for the next time"):
        assert plan().solve.profile


def test_processes_that_write_at_once_lose_nothing() -> None:
    def write(number: int) -> None:
        for k in range(10):
            kept = cache.add(DEVICE, {f"op{k}": Cost(ns=number), f"op{number}.{k}": Cost(ns=number)})
            seen[number].append(kept[f"op{k}"].ns)

    seen: dict[int, list[int]] = {n: [] for n in range(1, 5)}
    writers = [threading.Thread(target=write, args=(n,)) for n in seen]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    result = cache.read(DEVICE)
    assert len(result) == 10 + 4 * 10
    assert all(said == [result[f"op{k}"].ns for k in range(10)] for said in seen.values())  # what was first stays


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # not allowed by the specification
    monkeypatch.setenv("LOCALAPPDATA", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert cache.folder().is_relative_to(tmp_path)
    assert not os.listdir(tmp_path)
