"""Attributes that forward itself changes: planning leaves them as they were; both states are accepted where they make
no difference, and the model is refused where they do."""

from __future__ import annotations

import importlib.util
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remate.capture.capture_step import capture
from remate.errors import CaptureError
from remate_runtime import StaleModelError, apply
from tests.runtime.stepping import assert_same, schedule_of, step, with_recomputes

from .sources import TRAIN, Sources, sources

__all__ = ["sources"]
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Flagged(nn.Module):
    """Finds out at its first call what it is for, and writes that into its settings."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.config = types.SimpleNamespace(**({"problem": None} | settings))
        self.ready = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            self.ready = True
        if self.config.problem is None:
            self.config.problem = "regression" if x.shape[1] == 8 else "classes"
        outputs = self.linear(x)
        return (outputs.square() if self.config.problem == "regression" else outputs.exp()).sum()


def test_planning_leaves_the_model_as_it_was() -> None:
    model = Flagged()
    capture(model, (X,))
    assert model.config.problem is None
    assert not model.ready


def test_both_states_are_accepted_and_no_other() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule = with_recomputes(capture(Flagged(), (X,)), lambda graph: [])
        fresh, used = Flagged(), Flagged()
        used(X)
        for model in (fresh, used):
            assert_same(step(apply(model, schedule), (X,)), step(model, (X,)))
    with pytest.raises(StaleModelError, match='problem was null or "regression" when planned, is "classes"'):
        apply(Flagged(problem="classes"), schedule)
    planned = apply(fresh, schedule)
    fresh.config.problem = "classes"
    with pytest.raises(StaleModelError, match="problem"):
        planned(X)


def test_a_model_used_beside_its_schedule_stays_the_planned_one() -> None:
    model = Flagged()
    planned = apply(model, with_recomputes(capture(model, (X,)), lambda graph: []))
    planned(X).backward()
    model(X)  # a validation step, say
    planned(X).backward()


class Initialized(nn.Module):
    """Its first call computes something else than the following ones."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.initialized = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.initialized:
            self.initialized = True
            return (x * self.scale / x.std()).sum()
        return (x * self.scale).sum()


def test_a_first_call_that_differs_is_refused() -> None:
    model = Initialized()
    with pytest.raises(CaptureError, match=r"\(initialized\).*its next call computes something else"):
        capture(model, (X,))
    model(X)
    schedule = with_recomputes(capture(model, (X,)), lambda graph: [])
    with pytest.raises(StaleModelError, match="initialized was true when planned, is false"):
        apply(Initialized(), schedule)


@pytest.mark.slow
def test_what_forward_counts_in_is_said_and_left_out(sources: Sources) -> None:
    text = TRAIN.replace("        for block", "        self.calls += 1\n        self.log.append(1)\n        for block")
    text = text.replace("        self.head =", "        self.calls, self.log = 0, []\n        self.head =")
    model = sources.build(text=text)
    with pytest.warns(UserWarning, match=r"reads and then changes attributes \(calls, log\)"):
        schedule = schedule_of(model, (X,))
    assert (model.calls, model.log) == (0, [])
    model.calls = 7
    apply(model, schedule)


EXECUTED = """
import torch
from torch import nn

class Net(nn.Linear):
    def forward(self, x):
        return halved(super().forward(x)).sum()

def halved(x):
    return x / 2
"""


def test_a_file_that_is_executed_under_another_name_is_the_same(tmp_path: Path) -> None:
    """`importlib.util.spec_from_file_location`, as tools import configuration files, without a place in sys.modules."""
    path = tmp_path / "train.py"
    path.write_text(EXECUTED)

    def built(name: str) -> nn.Module:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.Net(8, 2)

    schedule = schedule_of(built("first"), (X,))
    model = built("second")
    assert_same(step(apply(model, schedule), (X,)), step(model, (X,)))


@pytest.mark.slow
def test_hooks_that_forward_installs_are_its_own() -> None:
    """Models of Hugging Face install hooks at their first call, to collect the hidden states that they read."""
    transformers: Any = pytest.importorskip("transformers")
    sizes = {"hidden_sizes": [8, 16, 16, 16], "num_attention_heads": [1, 2, 2, 2], "decoder_hidden_size": 16}
    config = transformers.SegformerConfig(depths=[1] * 4, mlp_ratios=[2] * 4, num_labels=4, **sizes)
    call = {"pixel_values": torch.randn(1, 3, 32, 32), "labels": torch.zeros(1, 32, 32, dtype=torch.long)}

    def made() -> nn.Module:
        torch.manual_seed(0)
        return transformers.SegformerForSemanticSegmentation(config)

    fresh, used = made(), made()
    used(**call)
    for planned, trained in ((fresh, used), (used, fresh)):
        applied = apply(trained, schedule_of(planned, (), call))
        applied(**call).loss.backward()
        trained(**call)
        applied(**call).loss.backward()
