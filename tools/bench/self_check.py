"""Measures the cost and the false alarms of the self-check of an applied model.

    python -m tools.bench.self_check [--checks 6]

Small models, planned at 70% of their peak. time: additional CPU time of a checked call, over
that of a step. peak: peaks of steps with and without a check, over the predicted peak. alarms: errors and warnings in
this number of checked steps, in 32-bit floats and under autocast to bfloat16, and whether gradients and random numbers
equal those of a run without checks.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
import transformers
from torch import nn

from remate import plan
from remate.errors import InfeasibleError
from remate_runtime import RemateError, Schedule, apply, predicted_peak
from remate_runtime.devices.cpu_memory import peak_on_cpu

from .text import table

Case = tuple[nn.Module, dict[str, Any]]


def _language(kind: Any, config: Any) -> Case:
    ids = torch.randint(0, 128, (4, 64))
    return kind(config).train(), {"input_ids": ids, "labels": ids}


def gpt2() -> Case:
    config = transformers.GPT2Config(n_layer=3, n_embd=128, n_head=4, vocab_size=128, n_positions=64, use_cache=False)
    return _language(transformers.GPT2LMHeadModel, config)


def bert() -> Case:
    config = transformers.BertConfig(
        hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256, vocab_size=128
    )
    return _language(transformers.BertForMaskedLM, config)


def llama() -> Case:
    config = transformers.LlamaConfig(
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=256,
        vocab_size=128,
        use_cache=False,
    )
    return _language(transformers.LlamaForCausalLM, config)


def t5() -> Case:
    config_class: Any = transformers.T5Config  # its type lacks the options that all models have
    config = config_class(
        decoder_start_token_id=0,
        d_model=128,
        d_kv=32,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        d_ff=256,
        vocab_size=128,
        use_cache=False,
    )
    return _language(transformers.T5ForConditionalGeneration, config)


class Images(nn.Module):
    """A small ResNet with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        config_class: Any = transformers.ResNetConfig
        config = config_class(embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic", num_labels=4)
        self.net = transformers.ResNetForImageClassification(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).logits.square().mean()


def resnet() -> Case:
    return Images().train(), {"x": torch.randn(8, 3, 32, 32)}


class Words(nn.Module):
    """An LSTM of two layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(128, 64), nn.LSTM(64, 64, 2, dropout=0.1, batch_first=True)
        self.out = nn.Linear(64, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.words(x))[0]).square().mean()


def lstm() -> Case:
    return Words().train(), {"x": torch.randint(0, 128, (8, 32))}


MODELS: dict[str, Callable[[], Case]] = {
    "GPT-2": gpt2,
    "BERT": bert,
    "Llama": llama,
    "T5": t5,
    "ResNet": resnet,
    "LSTM": lstm,
}


def loss_of(outputs: Any) -> torch.Tensor:
    return outputs if isinstance(outputs, torch.Tensor) else outputs.loss


def _step(model: Any, kwargs: dict[str, Any], autocast: bool = False) -> None:
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        loss = loss_of(model(**kwargs))
    loss.backward()


def seconds(model: Any, kwargs: dict[str, Any], repeats: int = 7) -> float:
    taken = []
    for _ in range(repeats):
        model.zero_grad()
        start = time.thread_time()
        _step(model, kwargs)
        taken.append(time.thread_time() - start)
    return median(taken)


def peak(model: Any, kwargs: dict[str, Any]) -> int:
    """Return the peak of a step, after two warm-up steps."""
    for _ in range(2):
        model.zero_grad()
        _step(model, kwargs)
    model.zero_grad()
    return peak_on_cpu(lambda: _step(model, kwargs))


def alarms(build: Callable[[], Case], schedule: Schedule, checks: int, autocast: bool) -> str:
    """Return errors and warnings of checked steps, and whether their final state equals that of steps without checks."""
    torch.manual_seed(0)
    model, kwargs = build()
    alarms_raised, left = 0, []
    for verify in ("never", 1):
        torch.manual_seed(1)
        applied = apply(copy.deepcopy(model), schedule, verify=verify)
        optimizer = torch.optim.SGD(applied.parameters(), lr=0.01)
        for _ in range(checks):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    _step(applied, kwargs, autocast)
                except RemateError as error:
                    if verify == "never":
                        return type(error).__name__  # the schedule does not run at all
                    alarms_raised += 1
            alarms_raised += len([warning for warning in caught if verify == 1])
            optimizer.step()
            optimizer.zero_grad()
        left.append([*(t.detach().clone() for t in applied.state_dict().values()), torch.get_rng_state()])
    same = all(map(torch.equal, *left))
    return f"{alarms_raised}{'' if same else ', other parameters'}"


def planned(model: nn.Module, kwargs: dict[str, Any]) -> Schedule:
    """Plan for 70% of the peak, or for the smallest possible budget if that is larger."""
    try:
        return plan(model, (), kwargs, budget="70%", cost="cpu", strategy="greedy")
    except InfeasibleError:
        return plan(model, (), kwargs, budget="100%", cost="cpu", strategy="greedy")


def rows(checks: int) -> Iterator[tuple[str, ...]]:
    yield ("model", "time of a check / step", "peak, checked", "peak, not checked", "alarms", "alarms, bf16")
    for name, build in MODELS.items():
        torch.manual_seed(0)
        model, kwargs = build()
        schedule = planned(model, kwargs)
        with torch.autocast("cpu", torch.bfloat16):
            low = planned(model, kwargs)
        plain, checked = (apply(model, schedule, verify=verify) for verify in ("never", 1))
        usual = seconds(plain, kwargs)
        predicted = predicted_peak(plain)
        yield (
            name,
            f"{(seconds(checked, kwargs) - usual) / usual:.2f}",
            *(f"{peak(scheduled, kwargs) / predicted:.3f}" for scheduled in (checked, plain)),
            alarms(build, schedule, checks, False),
            alarms(build, low, checks, True),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(table(list(rows(args.checks))))


if __name__ == "__main__":
    main()
