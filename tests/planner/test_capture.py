"""Captured steps compute what eager computes, on the zoo and on small models with one peculiarity each."""

from __future__ import annotations

import pytest
import torch

from tests.models import ZOO
from tests.planner.interpreter import compare


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.quick("tiny_gpt", "unet", "resnet", "lstm", "moe")
@pytest.mark.parametrize("name", list(ZOO))
def test_zoo(name: str) -> None:
    case = ZOO[name]
    model, args, kwargs = case.build()
    compare(model, args, kwargs, case.tolerance)
