"""A result that names a GPU is of a step of CUDA, never of the CPU's step with prices of a GPU."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from remate.api.plan import prepare
from remate.profile.devices import DEVICES
from remate_runtime.format import load
from tools.bench.absent_gpu import step_on, time_on
from tools.documentation.results import RESULTS, ROOT

_GPUS = {name for name, device in DEVICES.items() if device.kind == "cuda"}
_NAMED = re.compile(rf"\b(?:cuda:)?(?:{'|'.join(_GPUS)})\b", re.IGNORECASE)
_SOURCES = sorted([*(ROOT / "tools").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])
_ONLY = ROOT / "tools" / "bench" / "absent_gpu.py"  # prices steps of CUDA, and checks that they are
_PRICING = ("prepare", "costed")
_MEASURED = RESULTS / "cuda"  # on a GPU


def prices_of_a_gpu(source: str) -> Iterator[int]:
    """The lines of calls that take the costs of a GPU: by `cost=`, or by an argument of a function that prices."""
    tree = ast.parse(source)
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def names_one(node: ast.expr) -> bool:
        value = node.value if isinstance(node, ast.Constant) else constants.get(getattr(node, "id", ""))
        return isinstance(value, str) and value.lower() in _GPUS

    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            costs = [keyword.value for keyword in node.keywords if keyword.arg == "cost"]
            if any(map(names_one, [*costs, *(node.args if name in _PRICING else [])])):
                yield node.lineno


def results_that_name_a_gpu() -> list[Path]:
    texts = (path for path in sorted(RESULTS.rglob("*.txt")) if path.parent != _MEASURED)
    return [path for path in texts if _NAMED.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    "call", ['remate.plan(m, cost="h200")', 'prepare(m, (), {}, "a100")', 'A = "t4"\nremate.fit(m, cost=A)']
)
def test_costs_of_a_gpu_are_noticed(call: str) -> None:
    assert [*prices_of_a_gpu(call)] == [call.count("\n") + 1]


def test_no_benchmark_and_no_example_prices_a_step_as_one_of_a_gpu() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in _SOURCES
        if path != _ONLY
        for line in prices_of_a_gpu(path.read_text(encoding="utf-8"))
    ]
    assert found == [], 'step_on of tools/bench/absent_gpu.py, or device="cuda:..."'


def test_results_that_name_a_gpu_are_of_its_step() -> None:
    for path in results_that_name_a_gpu():
        command = re.match(r"python -m (tools\.bench\.\w+)", path.read_text(encoding="utf-8"))
        assert command, f"{path.name} names a GPU, but not the command that wrote it"
        source = (ROOT / f"{command[1].replace('.', '/')}.py").read_text(encoding="utf-8")
        assert re.search(r'\bstep_on\(|\bdevice="cuda:', source), f"{path.name}: no step of a GPU"


def test_schedules_of_examples_have_the_costs_of_their_device() -> None:
    for path in sorted((ROOT / "examples").rglob("*.json")):
        if '"format": "remate.schedule"' in path.read_text(encoding="utf-8")[:200]:
            schedule = load(path)
            assert schedule.solve.cost not in _GPUS or schedule.model.device == "cuda", path.name


@pytest.mark.slow
def test_a_step_on_a_gpu_is_that_of_cuda() -> None:
    with torch.device("meta"):
        built = torch.nn.TransformerEncoderLayer(64, 2, 64, batch_first=True), (torch.zeros(2, 16, 64),), {}
    graph = step_on("h100", built).captured.graph
    assert graph.device == "cuda"
    assert not [op.op for op in graph.operations if "for_cpu" in op.op]
    assert time_on("t4", graph) > time_on("h200", graph)
    model, args, _ = built
    with pytest.raises(ValueError, match="the step is for cpu, not for h200"):
        time_on("h200", prepare(model, args, cost="cpu").captured.graph)
