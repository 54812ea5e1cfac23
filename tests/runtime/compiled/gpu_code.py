"""Steps of small models by code for a GPU, in a process of its own: `python -m tests.runtime.compiled.gpu_code RUNS
NAME ...` prints what it found as JSON. RUNS: a folder with Triton, whose interpreter executes the kernels; "": they do
nothing, and only memory is looked at."""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
from typing import Any

import torch
from torch import nn

from remate_runtime.applied import planned_model
from remate_runtime.engine import in_cuda_graphs
from tests.models import ZOO

from ..cuda_graphs.recorder import OnCpu
from ..small import Normed, Tied, data, seeded
from ..stepping import in_blocks, just_in_time
from .subjects import Mixed
from .test_layouts import Pools


class Loss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        outputs = self.model(*args, **kwargs)
        return (
            outputs["loss"]
            if isinstance(outputs, dict)
            else outputs[0]
            if isinstance(outputs, tuple)
            else outputs.square().mean()
        )


def subject(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Model, args, kwargs."""
    own: dict[str, tuple[nn.Module, torch.Tensor]] = {
        "mixed": (Mixed(), data(64, 8)),
        "dropout": (Mixed(0.3), data(8, 8)),
        "normed": (Normed(), data(4, 3, 6, 6)),
        "pools": (Pools(), data(2, 2, 14, 14)),
        "tied": (Tied(), torch.arange(5)),
    }
    if name in own:
        return Loss(seeded(own[name][0])), (own[name][1],), {}
    model, args, kwargs = ZOO[name].build(layers=2, width=8, batch=1, length=4, vocab=11)
    return Loss(model), args, kwargs


def run(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model(*args, **kwargs).backward()


def gradients(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, torch.Tensor]:
    model.zero_grad()
    run(model, args, kwargs)
    return {name: parameter.grad.double() for name, parameter in model.named_parameters() if parameter.grad is not None}


def _plain(engine: Any, how: Any) -> Any:
    return engine


def _recorded(engine: Any, how: Any) -> Any:
    return in_cuda_graphs(engine, OnCpu, "cpu")


def step(name: str, runs: bool, sources: list[str]) -> dict[str, Any]:
    """name: with "@graphs", the step is recorded, and replayed twice. written: kernels. difference: of the gradients,
    relative to eager's. over: bytes by which the measured peak exceeds the prediction, where kernels do nothing."""
    from remate_runtime import apply, predicted_peak
    from remate_runtime.devices.cpu_memory import peak_on_cpu

    before = len(sources)
    name, _, graphs = name.partition("@")
    planned_model._of_one = _recorded if graphs else _plain
    model, args, kwargs = subject(name)
    schedule = in_blocks(model, args, just_in_time, kwargs)
    verify = "first" if runs else "never"  # kernels that do nothing give nothing to compare
    planned = apply(copy.deepcopy(model), schedule, engine="compiled", verify=verify)
    peak = predicted_peak(planned)
    by_name: dict[str, Any] = {"peak": peak, "written": len(sources) - before}
    if runs:
        gradients(planned, args, kwargs)
        have, want = gradients(planned, args, kwargs), gradients(model, args, kwargs)
        assert have.keys() == want.keys()
        wrong = sum(float((have[n] - want[n]).square().sum()) for n in want)
        return by_name | {"difference": (wrong / sum(float(item.square().sum()) for item in want.values())) ** 0.5}
    for _ in range(2):
        planned.zero_grad()
        over = peak_on_cpu(lambda: run(planned, args, kwargs)) - peak
    return by_name | {"over": over}


def main() -> None:
    triton, *names = sys.argv[1:]
    if triton:
        sys.path.append(triton)
        os.environ.update(TRITON_INTERPRET="1", TORCHINDUCTOR_COMPILE_THREADS="1")
    from .fake_gpu import code_for_an_h200, compile_for_gpu

    torch.set_num_threads(1)
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("remate_runtime").setLevel(logging.INFO)
    with code_for_an_h200(runs=bool(triton)) as sources:
        compile_for_gpu()
        print(json.dumps({name: step(name, bool(triton), sources) for name in names}))


if __name__ == "__main__":
    main()
