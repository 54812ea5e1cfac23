"""A file whose operators were chosen on another machine, held against the operators that the model runs here."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import remate
import remate_runtime
from remate_runtime import StaleModelError, StaleModelWarning
from remate_runtime.format import Schedule, decode, encode
from remate_runtime.format.fingerprints import fingerprint
from remate_runtime.staleness import BEYOND_EAGER


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.math = nn.Linear(16, 48), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x).view(2, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return F.gelu(attended).sum()


X = torch.randn(2, 8, 16)


def planned(model: nn.Module, captured: str = "by rules") -> Schedule:
    schedule = remate.plan(model, (X,), budget="100%", cost="cpu", progress=None)
    return stamped(replace(schedule, model=replace(schedule.model, captured=captured, cuda="13.0", cudnn="9.20.0")))


def stamped(schedule: Schedule) -> Schedule:
    return replace(schedule, model=replace(schedule.model, fingerprint=fingerprint(schedule)))


def warned(model: nn.Module, schedule: Schedule, chosen: SDPBackend | None = None) -> list[str]:
    applied = remate_runtime.apply(model, schedule)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            if chosen is None:
                applied(X).backward()
                continue
            with sdpa_kernel(chosen):
                applied(X).backward()
    return [str(each.message) for each in caught if issubclass(each.category, StaleModelWarning)]


def test_the_same_operators_are_no_news() -> None:
    model = Attention()
    assert not warned(model, planned(model))


def test_another_kernel_is_named_once_with_what_runs_instead() -> None:
    model = Attention()
    texts = warned(model, planned(model), SDPBackend.MATH)
    (text,) = [text for text in texts if "chosen for" in text]
    assert "chosen for cpu, torch 2." in text
    assert "CUDA 13.0, cuDNN 9.20.0" in text
    assert "aten._scaled_dot_product_flash_attention_for_cpu, as in" in text
    assert "_softmax, with a result f32[2,2,8,8]" in text
    assert "remate rebind" in text


def test_a_file_with_another_operator_is_named() -> None:
    model = Attention()
    text = encode(planned(model)).decode()
    edited = text.replace('"op": "aten.gelu"', '"op": "aten.silu"')
    assert edited != text
    applied = remate_runtime.apply(model, stamped(decode(edited)), stale="warn")
    with pytest.warns(StaleModelWarning) as caught:
        applied(X)
    (said,) = [str(each.message) for each in caught if "chosen for" in str(each.message)]
    assert "aten.silu, as in" in said
    assert "gelu, with a result f32[2,2,8,8]" in said


def test_a_file_of_this_device_is_not_compared_so() -> None:
    model = Attention()
    texts = warned(model, planned(model, ""), SDPBackend.MATH)
    assert not any("chosen for" in text for text in texts)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.project(x)
        return (x * torch.rand_like(x)).sum()


def test_a_kernel_that_draws_other_random_numbers_is_refused_with_the_reason() -> None:
    model = Noisy()
    text = encode(planned(model)).decode()
    edited = text.replace('"op": "aten.rand_like"', '"op": "aten.randn_like"')
    assert edited != text
    applied = remate_runtime.apply(model, stamped(decode(edited)))
    said = "other random numbers are drawn, so results differ"
    with pytest.warns(StaleModelWarning, match=said), pytest.raises(StaleModelError) as raised:
        applied(X)
    (reason,) = [line for line in str(raised.value).splitlines() if BEYOND_EAGER in line]
    assert "aten.randn_like, as in" in reason
    assert "they are those of cpu, torch 2." in reason
    assert "these draw other random numbers, so results cannot be compared" in reason
    assert "remate replan S.json" in str(raised.value)
