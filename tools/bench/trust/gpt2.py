"""A GPT-2 of two layers, changed in one way, and applied or called: what a user meets first."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from remate import plan
from remate_runtime import BindError, Schedule, SteppedAsideWarning, apply

from ..text import table

Change = Callable[[Any], Any]


def gpt2(layers: int, width: int = 64) -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=layers, n_embd=width, n_head=4, vocab_size=128, n_positions=64)
    ids = torch.randint(0, 128, (2, 32))
    return transformers.GPT2LMHeadModel(config).train(), {"input_ids": ids, "labels": ids, "use_cache": False}


def _observe(module: nn.Module, *rest: Any) -> None:
    pass


def _eval(model: Any) -> None:
    model.eval()


CASES: dict[str, Change] = {
    "nothing changed": lambda m: None,
    "an attribute that forward does not read": lambda m: setattr(m.transformer.h[0], "name", "first"),
    "a hook on the model itself": lambda m: m.register_forward_hook(_observe),
    "a hook on a parameter": lambda m: m.lm_head.weight.register_hook(lambda grad: grad),
    "dropout.p": lambda m: setattr(m.transformer.h[1].mlp.dropout, "p", 0.0),
    "scaling of attention": lambda m: setattr(m.transformer.h[1].attn, "scaling", 0.5),
    "GELU exchanged": lambda m: setattr(m.transformer.h[0].mlp, "act", nn.SiLU()),
    "config: attention path": lambda m: setattr(m.config, "_attn_implementation", "eager"),
    "forward hook on a layer": lambda m: m.transformer.h[0].register_forward_hook(_observe),
    "pre-hook on the embedding (NEFTune)": lambda m: m.transformer.wte.register_forward_pre_hook(_observe),
    "backward hook on a layer": lambda m: m.transformer.h[0].register_full_backward_hook(_observe),
    "forward of a layer replaced": lambda m: setattr(m.transformer.h[0].mlp, "forward", lambda x: x),
    "forward of the model replaced": lambda m: setattr(m, "forward", lambda **kwargs: None),
    "eval() with gradients": _eval,
}


def answer(schedule: Schedule, change: Change, when: str) -> str:
    """noticed (a warning), refused, or taken; `when` the change is made: before apply, or between two calls."""
    model, inputs = gpt2(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if when == "before":
                change(model)
            planned = apply(model, schedule)
            if when == "after":
                change(model)
            planned(**inputs)
        except BindError:
            return "refused"
    return "noticed" if any(issubclass(warning.category, SteppedAsideWarning) for warning in caught) else "taken"


def cases() -> str:
    model, inputs = gpt2(2)
    schedule = plan(model, (), inputs, budget="90%", cost="cpu", strategy="greedy")
    rows = [("case", "before apply", "after apply")]
    rows += [
        (name, *(answer(schedule, change, when) for when in ("before", "after"))) for name, change in CASES.items()
    ]
    return table(rows)
