"""`remate check --model` and `remate run` on models that changed after planning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from remate_runtime.format.fingerprints import fingerprint
from remate_runtime.format.reader import load

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]
CHANGED = (
    "other_batch",
    "other_activation",
    "other_precision",
    "one_layer_more",
    "one_layer_frozen",
    "in_evaluation",
)


@pytest.mark.quick("one_layer_more")
@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize("name", CHANGED)
def test_changed_model(remate: Remate, golden: Golden, name: str) -> None:
    outcome = remate("check", "s.json", "--model", f"models.py:{name}", "--quiet")
    golden(f"stale-{name}.txt", str(outcome))
    assert outcome.status == 3


@pytest.mark.usefixtures("planned")
def test_other_torch_version(remate: Remate, golden: Golden) -> None:
    import torch

    release = torch.__version__.partition("+")[0]
    schedule = load("s.json")
    older = replace(schedule, model=replace(schedule.model, torch="2.11.0"))
    replace(older, model=replace(older.model, fingerprint=fingerprint(older))).save("s.json")
    outcome = remate("check", "s.json", "--model", "models.py:build", "--quiet")
    golden("stale-torch.txt", str(outcome).replace(release, "<live>"))


@pytest.mark.usefixtures("planned")
def test_run_refuses(remate: Remate) -> None:
    outcome = remate("run", "s.json", "--model", "models.py:one_layer_more")
    assert outcome.status == 3
    assert "12.weight" in outcome.err
