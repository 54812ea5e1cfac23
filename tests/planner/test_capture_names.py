"""Names, modules, source lines and fingerprints of captured steps; models without data; outputs that are no tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from remate.capture.capture_step import capture
from tests.planner.interpreter import compare


class Returns(nn.Module):
    """A linear layer whose forward is given as a function of (module, *inputs)."""

    def __init__(self, function: Any, **members: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def x(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape or (3, 4), generator=torch.Generator().manual_seed(3)).requires_grad_(grad)


def test_fingerprint_is_of_the_graph_only() -> None:
    first, second = (capture(nn.Linear(4, n), (x(),)).model.fingerprint for n in (4, 5))
    assert first != second
    assert first == capture(nn.Linear(4, 4), (x(),)).model.fingerprint


def test_meta_device_needs_no_data() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).to("meta")
    captured = capture(model, (x().to("meta"),))
    assert (
        captured.model.fingerprint == capture(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (x(),)).model.fingerprint
    )


def test_fake_model_needs_no_data() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model, a = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.empty(3, 4)
    assert len(capture(model, (a,)).graph.gradients) == 2


def test_opaque_output_warns() -> None:
    class Cache:
        pass

    with pytest.warns(UserWarning, match=r"(?s)cache.*Cache.*use_cache=False"):
        captured = capture(Returns(lambda self, a: {"loss": self.linear(a).sum(), "cache": Cache()}), (x(),))
    assert captured.model.outputs["dict"]["cache"] == {"literal": None}


def test_ids_and_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    captured = capture(model, (x(),))
    ids = [op.id for op in captured.graph.operations]
    assert ids[:2] == ["0.t", "0.addmm"]
    assert "2.grad.mm" in ids
    assert captured.modules[ids.index("1.grad.threshold_backward")] == "1"
    assert captured.classes == {"": "Sequential", "0": "Linear", "1": "ReLU", "2": "Linear"}
    captured = capture(Returns(lambda self, a: self.linear(a).tanh()), (x(),))
    tanh = next(op for op in captured.graph.operations if op.op == "aten.tanh")
    assert tanh.source.startswith("test_capture_names.py:")
    assert tanh.id == "tanh"


def test_names_that_files_do_not_allow_and_that_clash() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleDict({"a/b c": nn.Linear(4, 4), "add": nn.Linear(4, 4)})

        def forward(self, add: torch.Tensor) -> torch.Tensor:
            for block in self.blocks.values():
                add = block(add) + 1
            return add

    ids = [op.id for op in compare(Odd(), (x(),)).graph.operations]
    assert "blocks.a~b~c.addmm" in ids
    assert "add_2" in ids
    assert "add" not in ids
