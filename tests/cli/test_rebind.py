"""`remate rebind`: plans for the current model without solving, with a report of everything that is dropped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

import remate_runtime
from remate.schedule_tools.analysis import analyse, open_schedule
from remate_runtime.format import BASELINE, Recompute, Schedule, save
from tests.cli.changes import change

Remate = Callable[..., Any]
MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.ModuleList([nn.LayerNorm(16) for _ in range(3)])
        self.up = nn.ModuleList([nn.Linear(16, 64) for _ in range(3)])
        self.down = nn.ModuleList([nn.Linear(64, 16) for _ in range(3)])

    def forward(self, x):
        for norm, up, down in zip(self.norm, self.up, self.down):
            x = x + down(torch.nn.functional.gelu(up(norm(x))).tanh()).sigmoid()
        return x

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(6)])
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x).sum()

def build():
    torch.manual_seed(0)
    return Net(), (torch.randn(32, 16),)
"""


@pytest.fixture(scope="module")
def planned_text(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from remate.cli import main

    folder = tmp_path_factory.mktemp("net")
    (folder / "net.py").write_text(MODEL)
    target, path = f"{folder / 'net.py'}:build", folder / "s.json"
    assert main(["plan", target, "--budget", "70%", "-o", str(path), "--cost", "cpu", "--quiet"]) == 0
    return path.read_bytes()


@pytest.fixture
def rebind(remate: Remate, planned_text: bytes) -> Callable[..., Any]:
    """`rebind((old, new), ...)`: rebind `s.json` to the model with these changes, into `new.json`."""
    Path("s.json").write_bytes(planned_text)

    def run(*changes: tuple[str, str]) -> Any:
        text = MODEL
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        Path("net.py").write_text(text)
        return remate("rebind", "s.json", "--model", "net.py:build", "-o", "new.json")

    return run


def recomputes(path: str) -> list[tuple[int, int]]:
    return [(recompute.op, recompute.before) for recompute in open_schedule(path).expanded.recomputes]


def plans(path: str) -> list[str]:
    return [instance.plan for instance in remate_runtime.load(path).program]


@pytest.mark.slow
def test_an_unchanged_model(rebind: Callable[..., Any], remate: Remate) -> None:
    outcome = rebind()
    assert outcome.status == 0
    assert outcome.err == ""
    old, new = remate_runtime.load("s.json"), remate_runtime.load("new.json")
    assert new == old
    assert old.solve.lower_bound is not None
    assert recomputes("s.json")
    assert remate("check", "new.json", "--model", "net.py:build").status == 0


@pytest.mark.slow
def test_renamed_modules(rebind: Callable[..., Any], remate: Remate) -> None:
    outcome = rebind(("self.layers", "self.h"), ("Block", "Layer"), ("self.up", "self.expand"))
    assert outcome.status == 0
    assert ", nothing left out" in outcome.out
    assert recomputes("new.json") == recomputes("s.json")
    assert plans("new.json") == plans("s.json")
    old, new = remate_runtime.load("s.json"), remate_runtime.load("new.json")
    assert new.solve == old.solve  # names are no part of what was proven
    assert remate("check", "s.json", "--model", "net.py:build").status == 3
    assert remate("check", "new.json", "--model", "net.py:build").status == 0


@pytest.mark.slow
def test_another_batch(rebind: Callable[..., Any], remate: Remate) -> None:
    assert rebind(("torch.randn(32, 16)", "torch.randn(48, 16)")).status == 0
    assert remate_runtime.load("new.json").solve.lower_bound is None
    assert recomputes("new.json") == recomputes("s.json")
    old, new = remate_runtime.load("s.json"), remate_runtime.load("new.json")
    assert new.solve.budget == int(0.7 * new.solve.baseline_peak) > old.solve.budget
    assert remate("check", "new.json", "--model", "net.py:build").status == 0


@pytest.mark.slow
def test_another_torch(rebind: Callable[..., Any], remate: Remate) -> None:
    change("s.json", (f'"torch": "{torch.__version__.partition("+")[0]}"', '"torch": "2.11.0"'), to="s.json")
    Path("net.py").write_text(MODEL)
    assert remate("check", "s.json", "--model", "net.py:build").status == 3
    assert rebind().status == 0
    assert recomputes("new.json") == recomputes("s.json")
    assert remate("check", "new.json", "--model", "net.py:build").status == 0


def test_a_bound_schedule_trains_as_eager(rebind: Callable[..., Any]) -> None:
    assert rebind(("self.layers", "self.h"), ("torch.randn(32, 16)", "torch.randn(24, 16)")).status == 0
    space: dict[str, Any] = {"__name__": "net"}
    exec(Path("net.py").read_text(), space)
    model, (x,) = space["build"]()
    schedule = replace(remate_runtime.load("new.json"), digest=None)
    loss = model(x)
    loss.backward()
    wanted = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    planned = remate_runtime.apply(model, schedule)
    planned(x).backward()
    assert all(torch.equal(p.grad, w) for p, w in zip(model.parameters(), wanted, strict=True))


@pytest.mark.slow
def test_layers_more_and_fewer_are_told(rebind: Callable[..., Any]) -> None:
    outcome = rebind(("range(6)", "range(8)"))
    assert "nothing in the schedule is like it; it recomputes nothing" in outcome.err
    assert len(recomputes("new.json")) >= len(recomputes("s.json"))
    outcome = rebind(("range(6)", "range(5)"))
    assert outcome.status in (0, 1)
    assert "nothing in the model is like it" in outcome.err


@pytest.mark.slow
def test_a_changed_block_keeps_what_it_can(rebind: Callable[..., Any]) -> None:
    rebind(("functional.gelu", "functional.silu"))
    assert len(recomputes("new.json")) == len(recomputes("s.json"))  # one activation stands for the other
    outcome = rebind(("torch.nn.functional.gelu(up(norm(x))).tanh()", "up(norm(x))"))
    assert "no counterpart" in outcome.err
    assert "gelu" in outcome.err
    analyse(remate_runtime.load("new.json"))


@pytest.mark.slow
def test_names_and_notes_of_people_are_kept(rebind: Callable[..., Any]) -> None:
    schedule = remate_runtime.load("s.json")
    name, block = max(schedule.blocks.items(), key=lambda item: len(item[1].forward))
    old = next(iter(block.plans))
    mine = tuple(replace(entry, note="because") for entry in block.plans[old])
    forward = (replace(block.forward[0], note="first of all"), *block.forward[1:])
    program = tuple(
        replace(instance, plan="mine", note=f"about {at}")
        if instance.plan == old and instance.block == name
        else instance
        for at, instance in enumerate(schedule.program)
    )
    changed = replace(block, plans={"mine": mine, "spare": mine[:1]}, forward=forward, note="my block")
    edited = replace(schedule, blocks={**schedule.blocks, name: changed}, program=program)
    save(figures(replace(edited, note="all of it")), "s.json")
    assert rebind(("self.layers", "self.h"), ("Block", "Layer")).status in (0, 1)
    new = remate_runtime.load("new.json")
    result = next(b for b in new.blocks.values() if "mine" in b.plans)
    assert set(result.plans) == {"mine", "spare"}
    assert [entry.note for entry in result.plans["mine"]] == ["because"] * len(mine)
    assert (result.note, result.forward[0].note, new.note) == ("my block", "first of all", "all of it")
    assert [instance.note for instance in new.program] == [instance.note for instance in program]


def figures(schedule: Schedule) -> Schedule:
    opened = analyse(schedule)
    return replace(schedule, solve=replace(schedule.solve, peak=opened.timeline.peak, time=opened.timeline.time))


@pytest.mark.slow
def test_a_budget_that_is_exceeded_is_said(rebind: Callable[..., Any], remate: Remate) -> None:
    schedule = remate_runtime.load("s.json")
    requested = schedule.solve.settings
    assert requested is not None
    budget = schedule.solve.peak
    save(replace(schedule, solve=replace(schedule.solve, settings=replace(requested, budget=str(budget)))), "s.json")
    outcome = rebind(("torch.randn(32, 16)", "torch.randn(64, 16)"))
    assert outcome.status == 1
    assert "over the budget" in outcome.err
    assert "hint: remate replan new.json --model net.py:build" in outcome.err
    assert remate("check", "new.json").status == 1


def test_another_model_altogether(remate: Remate, rebind: Callable[..., Any]) -> None:
    Path("other.py").write_text(
        "import torch\ndef build():\n    return torch.nn.Embedding(4, 4), (torch.zeros(2, dtype=torch.long),)\n"
    )
    outcome = remate("rebind", "s.json", "--model", "other.py:build", "-o", "new.json")
    assert outcome.status == 1
    assert "no plan can be transferred" in outcome.err
    assert not Path("new.json").exists()


@pytest.mark.slow
def test_statements_of_the_whole(rebind: Callable[..., Any]) -> None:
    schedule = remate_runtime.load("s.json")
    opened = analyse(schedule)
    leaf = next(p for p in opened.expanded.places if "native_layer_norm" in str([op.id for op in p.block.forward]))
    norm = next(op.id for op in leaf.block.forward if op.op == "aten.native_layer_norm")
    before = opened.graph.operations[leaf.backward.start].id
    extra = (Recompute((f"{leaf.id}.{norm}",), before), Recompute((leaf.id,), leaf.id))
    save(figures(replace(schedule, statements=(*schedule.statements, *extra))), "s.json")
    rebind(("self.layers", "self.h"))
    assert recomputes("new.json") == recomputes("s.json")
    assert [instance.plan == BASELINE for instance in remate_runtime.load("new.json").program] == [
        instance.plan == BASELINE for instance in schedule.program
    ]
