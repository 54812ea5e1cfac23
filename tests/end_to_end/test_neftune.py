"""NEFTune, as transformers' Trainer switches it on: noise on the embeddings by a hook."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import remate
from remate_runtime import StaleModelError, apply

pytest.importorskip("transformers")


def built() -> tuple[Any, dict[str, Any]]:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=16)
    ids = torch.randint(0, 32, (2, 8))
    return transformers.GPT2LMHeadModel(config).train(), {"input_ids": ids, "labels": ids, "use_cache": False}


def noisy(model: Any, alpha: float) -> Any:
    from transformers.integrations.neftune import neftune_post_forward_hook

    embeddings = model.get_input_embeddings()
    embeddings.neftune_noise_alpha = alpha
    embeddings.register_forward_hook(neftune_post_forward_hook)
    return model


def planned(model: Any, inputs: Any) -> Any:
    return apply(model, remate.plan(model, (), inputs, budget="90%", cost="cpu", strategy="greedy"))


def test_noise_that_is_planned_is_eagers() -> None:
    model, inputs = built()
    eager = noisy(model, 5.0)
    own = copy.deepcopy(eager)
    scheduled = planned(own, inputs)
    for seed in range(2):
        losses = []
        for module in (eager, scheduled):
            torch.manual_seed(seed)
            module.zero_grad()
            losses.append(module(**inputs).loss)
            losses[-1].backward()
        assert torch.equal(*losses)
        for a, b in zip(own.parameters(), eager.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
    own.get_input_embeddings().neftune_noise_alpha = 10.0
    with pytest.raises(StaleModelError, match="neftune_noise_alpha was 5"):
        scheduled(**inputs)


@pytest.mark.slow
def test_noise_that_comes_later_is_refused() -> None:
    model, inputs = built()
    scheduled = planned(model, inputs)
    noisy(model, 5.0)
    with pytest.raises(StaleModelError, match=r"neftune_post_forward_hook' was not there when planned"):
        scheduled(**inputs)
