"""Seed and offset of fused attention are scalars of the host, although files place them on the device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from remate_runtime.engine.compiled import workspaces
from remate_runtime.engine.eager.first_run import _check_type
from remate_runtime.errors import ExecutionError
from remate_runtime.flat_step import Op
from remate_runtime.format.tensor_type import TensorType
from remate_runtime.operator_calls.host_states import read_on_host, returned_on_host

CUDA = torch.device("cuda")
SEED, OUTPUT = TensorType("i64", ()), TensorType("f32", (2,))
ATTENTION = "aten._scaled_dot_product_efficient_attention"


def operation(name: str) -> Op:
    about: Any = SimpleNamespace(id="attn", op=name)
    return about


def test_a_seed_on_the_host_is_accepted_from_attention_only() -> None:
    seed = torch.zeros((), dtype=torch.int64)
    _check_type(operation(ATTENTION), seed, SEED, CUDA, strides=True)
    with pytest.raises(ExecutionError, match=r"returned i64\[\] on cpu"):
        _check_type(operation("aten.sum"), seed, SEED, CUDA, strides=True)
    with pytest.raises(ExecutionError, match=r"returned f32\[2\] on cpu"):
        _check_type(operation(ATTENTION), torch.zeros(2), OUTPUT, CUDA, strides=True)
    assert not returned_on_host(ATTENTION, OUTPUT)


def test_positions_are_those_of_the_schema() -> None:
    backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
    positions = read_on_host("aten._scaled_dot_product_efficient_attention_backward")
    assert [backward._schema.arguments[at].name for at in positions] == ["philox_seed", "philox_offset"]
    assert read_on_host("aten.mm") == ()


def test_workspaces_are_measured_with_seeds_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pointer to the device in their place would crash the process."""
    seen: list[str] = []

    class Backward:
        def __str__(self) -> str:
            return "aten._scaled_dot_product_efficient_attention_backward.default"

        def __call__(self, *arguments: Any, **named: Any) -> torch.Tensor:
            seen[:] = [argument.device.type for argument in arguments]
            return torch.zeros(1)

    def moved(tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
        return torch.empty_like(tensor, device="meta" if device is None or device.type == "cuda" else device)

    def peak(run: Any, device: torch.device) -> int:
        run()
        return 0

    monkeypatch.setattr(workspaces, "made_up", moved)
    monkeypatch.setattr(workspaces, "peak_on_cuda", peak)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: torch.no_grad())
    operator: Any = Backward()
    workspaces._measured(operator, [torch.zeros(2)] * 7 + [torch.zeros((), dtype=torch.int64)] * 2, {}, CUDA)
    assert seen == ["meta"] * 7 + ["cpu"] * 2
