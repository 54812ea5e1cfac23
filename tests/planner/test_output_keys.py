"""Dicts among inputs and outputs whose keys are spelled like words of the format."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import remate
import remate_runtime
from remate_runtime.format import Schedule


class Named(nn.Linear):
    def __init__(self, key: str) -> None:
        super().__init__(4, 4)
        self.key = key

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        loss = super().forward(batch[self.key]).square().mean()
        rows = {self.key: batch[self.key].shape[0], "other": batch["factor"]}
        return {"loss": loss, self.key: loss.detach() * 2, "rows": rows}


@pytest.mark.parametrize("key", ["literal", "value", "tensor", "dict", "returns"])
@pytest.mark.parametrize("sized", [False, True])
def test_keys_may_be_words_of_the_format(key: str, sized: bool) -> None:
    model, batch = Named(key), {key: torch.ones(4, 4), "factor": 3}
    dims = {"batch": {key: {0: "b=2..8"}}} if sized else None
    schedule = remate.plan(model, (batch,), budget="100%", dims=dims)
    assert isinstance(schedule, Schedule)
    assert remate_runtime.apply(model, schedule, verify=True)(batch) == model(batch)
