"""`--engine compiled`, `--engine arena`, `--engine graphs`: the tests of the runtime, with what they apply executed by
another engine than eager's, or by that in graphs that are recorded on the CPU."""

from __future__ import annotations

import warnings

import pytest
import torch

from remate_runtime.applied import planned_model, prediction
from remate_runtime.applied.given import How
from remate_runtime.engine import Engine, engine_of, in_cuda_graphs

from . import stepping
from .cuda_graphs.recorder import OnCpu

ROUNDING = 1e-4
NOTHING = 1e-6  # what is left of a gradient that is 0 by right: of a bias in front of a batch norm


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What is marked `compiled` runs by that engine and in graphs among the slow tests, too, unless one engine is
    requested."""
    marked = metafunc.definition.get_closest_marker("compiled") is not None
    if marked and metafunc.config.getoption("--engine") == "eager":
        engines = ["eager", *(pytest.param(item, marks=pytest.mark.slow) for item in ("compiled", "graphs"))]
        metafunc.parametrize("requested_engine", engines, indirect=True)


@pytest.fixture(autouse=True)
def requested_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that name no engine run with the one of `--engine`. Results are compared up to its rounding."""
    requested = str(getattr(request, "param", request.config.getoption("--engine")))
    if requested == "eager":
        return
    if requested == "graphs":
        if any(request.node.get_closest_marker(mark) for mark in ("eager", "allocating")):
            pytest.skip("it is about what a step allocates, or one engine, and --engine is graphs")
        _in_graphs(monkeypatch)
        return
    if request.node.get_closest_marker("eager") is not None:
        pytest.skip(f"it is about the engine 'eager', and --engine is {requested}")

    if requested == "arena" and request.node.get_closest_marker("allocating") is not None:
        pytest.skip("it is about memory that operators make for themselves, and --engine is arena")

    def other(name: str) -> Engine:
        return engine_of(requested if name == "eager" else name)

    for module in (prediction, planned_model):
        monkeypatch.setattr(module, "engine_of", other)
    if requested != "arena":  # whose steps are eager's to the bit
        monkeypatch.setattr(stepping, "ROUNDING", ROUNDING)
        monkeypatch.setattr(torch, "equal", _nearly_equal)


def _in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine "eager" in graphs, which are recorded on the CPU. What cannot be replayed is warned of, and runs
    without."""

    def of_one(engine: Engine, how: How) -> Engine:
        return in_cuda_graphs(engine, OnCpu, "cpu") if engine.name == "eager" else engine

    monkeypatch.setattr(planned_model, "_of_one", of_one)
    warnings.filterwarnings("ignore", ".* CUDA graphs")


_equal = torch.equal


def _nearly_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.is_floating_point() or a.dtype is not b.dtype or a.shape != b.shape or not a.numel():
        return _equal(a, b)
    a, b = a.detach().double(), b.detach().double()
    return torch.allclose(a, b, rtol=ROUNDING, atol=max(ROUNDING * float(b.abs().max()), NOTHING), equal_nan=True)
