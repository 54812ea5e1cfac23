"""`--device-memory`: the budget of the step is what everything else leaves, and `show` reports whether a schedule
fits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from remate.schedule_tools.device_memory import CONTEXT, OPTIMIZERS, residents
from remate_runtime.format import load, parse_type

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]
PLAN = ("plan", "models.py:build", "--cost", "cpu", "-o", "s.json")
PARAMETERS = 6 * (64 * 64 + 64) * 4  # bytes of models.py:build
INPUTS = 512 * 64 * 4


def test_the_budget_is_what_is_left(remate: Remate) -> None:
    outcome = remate(*PLAN, "--device-memory", "2MiB", "--optimizer", "adamw")
    assert outcome.status == 0, outcome.err
    solve = json.loads(Path("s.json").read_text())["solve"]
    assert solve["budget"] == (2 << 20) - PARAMETERS - INPUTS - 2 * PARAMETERS
    lines = [re.sub(" {2,}", "  ", line) for line in outcome.out.split("\n")]
    assert lines[:6] == [
        "device memory  2.00 MiB",
        "  - parameters  97.5 KiB",
        "  - buffers  0 B",
        "  - inputs  128 KiB",
        "  - optimizer state  195 KiB  adamw: twice the trainable parameters",
        "  = budget of the step  1.59 MiB  its gradients included",
    ]
    assert remate("check", "s.json").status == 0
    shown = remate("show", "s.json", "--device-memory", "2MiB", "--optimizer", "adamw")
    assert (shown.status, "\nfits 2.00 MiB device memory\n" in shown.out) == (0, True)


@pytest.mark.slow
def test_of_sharded_parameters_a_rank_holds_a_shard(remate: Remate) -> None:
    memory = ("--device-memory", "2MiB", "--optimizer", "adamw")
    outcome = remate(*PLAN, *memory, "--fsdp", "*", "--shards", "3", "--keep-gathered")
    assert outcome.status == 0, outcome.err
    shard = 6 * (22 * 64 + 22) * 4
    sizes = f"  - parameters  {shard / 1024:.1f} KiB  a shard of 3"
    assert sizes in re.sub(" {2,}", "  ", outcome.out).replace("\n ", "\n  ")
    tree = json.loads(Path("s.json").read_text())
    assert tree["solve"]["budget"] == (2 << 20) - INPUTS - 3 * shard
    assert "" in tree["model"]["sharded"]["kept"]
    assert len(tree["model"]["sharded"]["kept"]) > 1
    shown = remate("show", "s.json", *memory)
    assert "sharded by FSDP2: " in shown.out
    assert re.search(r"  gathered parameters, at most +101 KiB +101 KiB\n", shown.out)
    assert "  gathered parameters: " in shown.out
    assert "packed into one block" not in shown.out
    refused = remate(*PLAN, "--fsdp", "*", "--shards", "3", "--dims", "auto")
    assert (refused.status, "--fsdp does not support --dims" in refused.err) == (1, True)


def test_show_tells_whether_it_fits(remate: Remate, golden: Golden) -> None:
    command = ("show", "mlp.json", "--device-memory")
    fits = remate(*command, "6MiB", "--optimizer", "sgd")
    assert fits.status == 0
    too_much = remate(*command, "6MiB", "--optimizer", "adam", "--cuda-context", "1MiB")
    assert too_much.status == 1
    golden("show-device-memory.txt", "".join(o.out[o.out.rindex("\n\n") :] for o in (fits, too_much)))


def test_what_a_device_holds_may_be_nothing(remate: Remate) -> None:
    nothing = ("--optimizer-bytes", "0", "--cuda-context", "0B", "--reserve", "0 MiB")
    shown = remate("show", "mlp.json", "--device-memory", "6MiB", *nothing)
    assert shown.status == 0
    assert re.search(r"CUDA context +0 B\n", shown.out)
    assert remate("show", "mlp.json", "--device-memory", "0", "--optimizer", "sgd").status == 2


@pytest.mark.slow("bytes", "argv8")
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--device-memory", "2MiB"), "whose state is on the device\nhint: add --optimizer adamw"),
        (("--device-memory", "2MiB", "--optimizer", "adamww"), "hint: did you mean adamw?"),
        (("--device-memory", "50%", "--optimizer", "sgd"), "is not a size; write 512MiB or 24GiB"),
        (("--budget", "50%", "--optimizer", "sgd"), "--reserve and --cuda-context need --device-memory"),
        (("--device-memory", "2MiB", "--optimizer", "sgd", "--optimizer-bytes", "1MiB"), "exclude each other"),
        (("--device-memory", "2MiB", "--optimizer", "torch.optim.Nowhere"), "there is no optimizer"),
        (("--device-memory", "2MiB", "--optimizer", "torch.optim.LBFGS"), "--optimizer-bytes"),
        (("--budget", "50%", "--device-memory", "2MiB"), "not allowed with argument"),
        (("--device-memory", "100KiB", "--optimizer", "sgd"), "the device is full before the step begins"),
    ],
)
def test_refused(remate: Remate, argv: tuple[str, ...], said: str) -> None:
    outcome = remate(*PLAN, *argv)
    assert outcome.status == 2
    assert said in outcome.err
    assert not Path("s.json").exists()


def test_bytes_of_the_state_and_a_reserve_are_subtracted(remate: Remate) -> None:
    words = ("--device-memory", "2MiB", "--optimizer-bytes", "100KiB", "--reserve", "50KiB")
    outcome = remate(*PLAN, *words)
    assert outcome.status == 0, outcome.err
    left = (2 << 20) - PARAMETERS - INPUTS - (150 << 10)
    assert json.loads(Path("s.json").read_text())["solve"]["budget"] == left
    assert "- reserve" in remate("show", "s.json", *words).out


@pytest.mark.parametrize("name", ["Adafactor", "Adadelta", "NAdam", "Adagrad", "SGD", "AdamW"])
def test_any_optimizer_makes_one_step_without_memory(remate: Remate, name: str) -> None:
    """The predicted state equals that of a real optimizer, except counters."""
    model = load("mlp.json").model
    (held,) = [r for r in residents(model, f"torch.optim.{name}") if r.what == "optimizer state"]
    shapes = [parse_type(text).shape for text in model.parameters.values()]
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = getattr(torch.optim, name)(parameters)
    optimizer.step()
    state = [
        t for values in optimizer.state.values() for t in values.values() if isinstance(t, torch.Tensor) and t.dim()
    ]
    assert held.nbytes == sum(tensor.untyped_storage().nbytes() for tensor in state)
    frozen = replace(model, frozen=tuple(model.parameters))
    assert [r.nbytes for r in residents(frozen, f"torch.optim.{name}")][3] == 0


def test_a_function_that_makes_an_optimizer(remate: Remate) -> None:
    model = load("mlp.json").model
    (held,) = [
        r
        for r in residents(model, lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
        if r.what == "optimizer state"
    ]
    assert held.nbytes == [r.nbytes for r in residents(model, "sgd-momentum")][3]


def test_frozen_parameters_have_no_state_and_cuda_rounds_up(remate: Remate) -> None:
    model = load("mlp.json").model
    frozen = replace(model, frozen=tuple(model.parameters))
    assert [r.nbytes for r in residents(frozen, "adamw")][3] == 0
    on_cuda = residents(replace(model, device="cuda", buffers={"step": "i64[]", "host": "i64[]@cpu"}), "sgd")
    assert {r.what: r.nbytes for r in on_cuda if r.what in ("buffers", "CUDA context")} == {
        "buffers": 512,
        "CUDA context": CONTEXT,
    }


MADE: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd-momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "muon": lambda p: torch.optim.Muon([weight for weight in p if weight.dim() == 2]),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adam-amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw-amsgrad": lambda p: torch.optim.AdamW(p, amsgrad=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_of_torchs_optimizers(name: str) -> None:
    """Tensors of a parameter's size, after a step."""
    model = nn.Linear(16, 16, bias=False)
    optimizer = MADE[name](list(model.parameters()))
    model(torch.randn(2, 16)).sum().backward()
    optimizer.step()
    (state,) = optimizer.state.values() if optimizer.state else ({},)
    sizes = [value.numel() for value in state.values() if isinstance(value, torch.Tensor)]
    assert sum(size == 256 for size in sizes) == OPTIMIZERS[name]
    assert all(size in (1, 256) for size in sizes)


@pytest.mark.parametrize("command", ["plan", "frontier"])
@pytest.mark.parametrize(
    ("build", "said"),
    [
        ("all_frozen", "all 4 parameters are frozen: there is nothing to train"),
        ("without_parameters", "the model has no parameters: there is nothing to train"),
        ("in_evaluation", "the model is in evaluation mode"),
    ],
)
def test_what_trains_nothing_is_said_not_planned(remate: Remate, command: str, build: str, said: str) -> None:
    more = ("--budget", "80%", "-o", "s.json") if command == "plan" else ("--budgets", "80%", "-o", "out")
    outcome = remate(command, f"untrained.py:{build}", "--cost", "cpu", *more)
    assert outcome.status == 2
    assert outcome.err.startswith(f"error: untrained.py:{build}: {said}")
    assert "hint: " in outcome.err
    assert not Path("s.json").exists()


def test_what_is_meant_is_planned(remate: Remate) -> None:
    options = ("--cost", "cpu", "--budget", "100%", "-o", "s.json", "--quiet")
    assert remate("plan", "untrained.py:in_evaluation", *options, "--evaluation").status == 0
    assert not load("s.json").model.training
    assert remate("plan", "untrained.py:frozen_with_an_input_that_trains", *options).status == 0
