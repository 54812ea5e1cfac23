"""The rules for CUDA compared with the dispatch of a CUDA build of torch, in front of a stub of the CUDA runtime.

`tools/cuda-build` sets up such an environment (5 GB), and `REMATE_CUDA_BUILD` names its folder.
"""

from __future__ import annotations

import pytest
import torch

from .cuda_build.compared import ARCHITECTURES, PYTHON, differences, observed, python_for


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="rules are for machines without a GPU")
@pytest.mark.skipif(not PYTHON.exists(), reason="no CUDA build of torch here: tools/cuda-build sets one up (5 GB)")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rules_choose_what_torch_dispatches(architecture: str) -> None:
    rules, dispatch = (observed(python_for(source), architecture, source) for source in ("rules", "stub"))
    assert len(dispatch["attention"]) > 3000
    assert len(dispatch["models"]) >= 30
    differing = differences(rules, dispatch)
    assert not differing, "\n".join(differing[:5])


def test_a_difference_is_noticed() -> None:
    rules = {"attention": {"a": "flash"}, "models": {"m": "native_batch_norm"}}
    assert not differences(rules, {kind: dict(cases) for kind, cases in rules.items()})
    (text,) = differences(rules, {"attention": {"a": "cudnn"}, "models": {"m": "native_batch_norm"}})
    assert "by rules flash" in text
    assert "by dispatch cudnn" in text
    assert len(differences(rules, {"attention": {"a": "flash"}, "models": {}})) == 1
