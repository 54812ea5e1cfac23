"""Captured steps compute what eager computes, on the zoo and on small models with one peculiarity each."""

from __future__ import annotations

import pytest
import torch

from tests.models import SMALLEST, ZOO
from tests.planner.interpreter import compare

# Smaller than these, further layers are the same again. Those of t5 and two_tower share values or parameters.
WHOLE = ("tiny_gpt", "resnet", "gru", "t5", "two_tower")


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.quick("lstm")
@pytest.mark.parametrize("name", list(ZOO))
def test_zoo(name: str) -> None:
    case = ZOO[name]
    model, args, kwargs = case.build(**({} if name in WHOLE else SMALLEST[name]))
    compare(model, args, kwargs, case.tolerance)
