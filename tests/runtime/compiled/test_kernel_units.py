"""Several kernels of a segment stand in one C++ file, and each is called with its own arguments."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from remate_runtime import apply
from remate_runtime.engine.compiled import kernel_units

from ..small import data, seeded
from ..stepping import assert_same, schedule_of, step
from .test_workers import Layers


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Any]]:
    """The kernels of every file."""
    results: list[Sequence[Any]] = []
    load = kernel_units._load

    def noted(kernels: Sequence[Any]) -> Any:
        results.append(kernels)
        return load(kernels)

    monkeypatch.setattr(kernel_units, "_load", noted)
    return results


def compiled_step(at: float) -> tuple[Any, nn.Module, torch.Tensor]:
    model, x = seeded(Layers(at, 10)), data(4, 8)
    return apply(copy.deepcopy(model), schedule_of(model, (x,)), engine="compiled"), model, x


@pytest.mark.slow
def test_kernels_share_files(units: list[Sequence[Any]]) -> None:
    planned, model, x = compiled_step(0.40625)
    assert_same(step(planned, (x,)), step(model, (x,)), 1e-5)
    sizes = [len(unit) for unit in units]
    assert max(sizes) == kernel_units._UNIT
    assert len({kernel.source for unit in units for kernel in unit}) > kernel_units._UNIT
    assert len({tuple(kernel.arguments) for unit in units for kernel in unit}) > 1


@pytest.mark.slow
def test_what_cannot_stand_beside_others_has_its_own_file(
    units: list[Sequence[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sources: list[str] = []

    def every_second(source: str) -> bool:
        sources.append(source)
        return len(sources) % 2 == 0

    monkeypatch.setattr(kernel_units, "_is_plain", every_second)
    planned, model, x = compiled_step(0.40625)
    assert_same(step(planned, (x,)), step(model, (x,)), 1e-5)
    assert 0 < sum(map(len, units)) < len(sources)


@pytest.mark.parametrize(
    "beside", ["#define N 3\n", 'extern "C" int other(int x);\n', 'extern "C" void kernel(int);\n']
)
def test_a_source_with_more_than_its_kernel_is_not_plain(beside: str) -> None:
    source = '#include <vector>\nextern "C"  void  kernel(float* out_ptr0)\n{\n}\n'
    assert kernel_units._is_plain(source)
    assert not kernel_units._is_plain(beside + source)


def test_other_threads_and_what_comes_later_are_left_alone() -> None:
    from torch._inductor.async_compile import AsyncCompile

    inductor: Any = AsyncCompile
    before = inductor.cpp_pybinding, inductor.wait
    results: list[Any] = []

    def elsewhere() -> None:
        source = (
            '#include <torch/csrc/inductor/cpp_prefix.h>\nextern "C"  void  kernel(float* x)\n{\n    x[0] = 3;\n}\n'
        )
        results.append(AsyncCompile().cpp_pybinding(["float*"], source))

    with kernel_units.in_units():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert (inductor.cpp_pybinding, inductor.wait) == before
    kernel = results[0].result() if hasattr(results[0], "result") else results[0]
    x = torch.zeros(1)
    kernel(x)
    assert x.item() == 3
