"""Loops of libraries with one line more end as without, to the bit, and ran a schedule."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remate.training import state_of

from ..cli.processes import environment
from ..runtime.small import seeded

OPTIONS: dict[str, Any] = {"budget": "95%", "cost": "cpu", "effort": "quick", "dims": None, "progress": None}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts = [part for _ in range(3) for part in (nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1))]
        self.body, self.head = nn.Sequential(*parts), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        out = self.head(self.body(x)).squeeze(-1)
        return {"loss": (out if labels is None else out - labels).square().mean()}


def net() -> Any:
    return seeded(Net()).train()


def ends(model: Any) -> list[Any]:
    return [tensor.tolist() for tensor in model.state_dict().values()]


def scheduled(model: Any) -> bool:
    state = state_of(model)
    return state is not None and bool(state.outcome.schedules) and state._scheduled._remate_step.calls > 1


def test_the_folder_imports_no_library() -> None:
    code = "import remate.integrations, sys; print({'transformers', 'lightning', 'accelerate'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_trainer(tmp_path: Path, late: bool) -> None:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    from remate.integrations.transformers import RemateCallback

    rows = [{"x": row, "labels": row.sum()} for row in torch.randn(128, 16, generator=torch.Generator().manual_seed(0))]

    def train(*callbacks: Any) -> Any:
        model = net()
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=32,
            num_train_epochs=1,
            use_cpu=True,
            bf16=not late,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[] if late else list(callbacks))
        for callback in callbacks if late else ():
            trainer.add_callback(callback)
        trainer.train()
        return model

    model = train(RemateCallback(**OPTIONS, file=tmp_path / "plan.json"))
    assert ends(model) == ends(train())
    assert scheduled(model)
    assert (tmp_path / "plan.json").exists()


@pytest.mark.slow
def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    from remate.integrations.lightning import RemateCallback

    class Training(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = net()

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return self.model(batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    def train(*callbacks: Any) -> Any:
        torch.manual_seed(3)
        training = Training()
        quiet: dict[str, Any] = dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
        )
        data: Any = torch.utils.data.DataLoader([torch.randn(64, 16) for _ in range(4)], batch_size=None)  # type: ignore[arg-type]
        lightning.Trainer(
            max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, callbacks=list(callbacks), **quiet
        ).fit(training, data)
        return training.model

    callback = RemateCallback(**OPTIONS)
    model = train(callback)
    assert ends(model) == ends(train())
    assert scheduled(model)
    (report,) = callback.reports
    assert (report.name, report.refused, report.steps) == ("Net", "", 3)  # a module is known by its first call


@pytest.mark.slow
def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    from remate.integrations.accelerate import prepare

    def train(planned: bool) -> Any:
        accelerate.state.AcceleratorState._reset_state(True)
        torch.manual_seed(3)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
        given = (accelerator, model, optimizer)
        wrapped, optimizer = prepare(*given, **OPTIONS) if planned else accelerator.prepare(*given[1:])
        for _ in range(3):
            accelerator.backward(wrapped(torch.randn(64, 16))["loss"])
            optimizer.step()
            optimizer.zero_grad()
        return model

    model = train(True)
    assert ends(model) == ends(train(False))
    assert scheduled(model)
