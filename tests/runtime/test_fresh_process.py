"""The runtime loads no planner and no solver, and reading a file does not load torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from remate_runtime.format.writer import save

from .small import Mlp, data, seeded
from .stepping import schedule_of

RUNTIME = Path(__file__).parents[2] / "runtime"


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(RUNTIME)!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_reading_and_verifying_a_file_needs_no_torch(tmp_path):
    path = tmp_path / "s.json"
    save(schedule_of(seeded(Mlp()), (data(4, 8),)), str(path))
    _python(
        "import remate_runtime\n"
        f"schedule = remate_runtime.load({str(path)!r})\n"
        "from remate_runtime.link.verifier import verify\n"
        "assert verify(schedule).peak > 0 and remate_runtime.Schedule is type(schedule)\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
def test_training_loads_neither_planner_nor_solver(tmp_path, engine):
    path, weights = tmp_path / "s.json", tmp_path / "w.pt"
    model: Any = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
    save(schedule_of(model, (data(4, 8),)), str(path))
    torch.save(model.state_dict(), weights)
    model(data(4, 8)).sum().backward()
    result = _python(
        "import torch, remate_runtime\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))\n"
        f"model.load_state_dict(torch.load({str(weights)!r}))\n"
        f"planned = remate_runtime.apply(model, {str(path)!r}, engine={engine!r})\n"
        "planned(torch.randn(4, 8, generator=torch.Generator().manual_seed(1))).sum().backward()\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'remate', 'pyomo', 'highspy', 'scipy', 'jsonschema'}, loaded\n"
        "print(repr(model[0].bias.grad.tolist()))"
    )
    wanted = model[0].bias.grad.tolist()
    assert (
        result.strip() == repr(wanted) if engine == "eager" else json.loads(result) == pytest.approx(wanted, rel=1e-5)
    )


@pytest.mark.slow
def test_names_of_the_package():
    _python(
        "import remate_runtime\n"
        "assert 'torch' not in sys.modules\n"
        "for name in dir(remate_runtime): assert getattr(remate_runtime, name) is not None\n"
        "try: remate_runtime.nothing\n"
        "except AttributeError as error: assert 'nothing' in str(error)\n"
        "else: raise SystemExit(1)"
    )
