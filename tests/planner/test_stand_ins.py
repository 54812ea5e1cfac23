"""What stands in for torch's functions during a trace is gone after it, also where it was imported meanwhile."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch.utils.checkpoint  # noqa: F401

from remate.capture.cuda.no_gpu import no_gpu
from remate.capture.hot_paths import hot_paths
from remate.capture.surroundings import checkpoints_run_once

CASES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], str, str]] = {
    "trees": (hot_paths, "torch.utils._pytree", "tree_flatten"),
    "checkpoints": (
        lambda: checkpoints_run_once(lambda frame: None),
        "torch.utils.checkpoint",
        "_checkpoint_without_reentrant_generator",
    ),
    "a GPU": (lambda: no_gpu((9, 0), "H100", 80 << 30), "torch.cuda", "is_available"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_module_that_is_imported_meanwhile_gets_torchs_functions(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, holder, name = CASES[case]
    usual = getattr(sys.modules[holder], name)
    (tmp_path / "imported_meanwhile.py").write_text(f"from {holder} import {name} as taken\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imported_meanwhile", raising=False)
    with context():
        module = importlib.import_module("imported_meanwhile")
        assert module.taken is not usual
        assert getattr(sys.modules[holder], name) is module.taken
    assert module.taken is usual
    assert getattr(sys.modules[holder], name) is usual
    del sys.modules["imported_meanwhile"]
