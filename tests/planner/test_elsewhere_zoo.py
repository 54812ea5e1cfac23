"""The models of the tests as steps of a GPU that the machine does not have: planned and run dry."""

from functools import cache

import pytest
import torch

import remate
from remate.api.dry_run import dry_run
from remate.api.elsewhere import on_device_of
from remate.capture.recorded import RecordedCall
from remate.errors import CaptureError
from tests.models import SMALLEST, ZOO

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="steps of named GPUs are captured where there is none"
)
DEFAULT = ("tiny_gpt", "depthwise")
RECURRENT = ("lstm", "gru")
# Other models repeat most of their operations.
OTHER = ("moe", "unet", "fourier", "two_tower")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in OTHER]
COMPILED = ("tiny_gpt", "fourier")


@cache
def planned(name):
    """Its recorded call, and a schedule for a GPU."""
    model, args, kwargs = ZOO[name].build("cpu", **SMALLEST[name])
    schedule = remate.plan(model, args, kwargs, budget="70%", device="cuda:h100", effort="quick", progress=None)
    return RecordedCall.of(model, args, kwargs), schedule


@pytest.mark.slow("tiny_gpt")
@pytest.mark.parametrize("name", [*DEFAULT, *SLOW])
def test_every_result_is_as_declared_and_the_peak_as_predicted(name):
    recorded, schedule = planned(name)
    with on_device_of(schedule, recorded) as call:
        runs = [dry_run(call, schedule, engine=engine) for engine in ("eager", "arena")]
        replayed = dry_run(call, schedule, cuda_graphs=True)
    for ran in runs:
        assert ran.peak == ran.predicted
        assert ran.gradients == sum(p.requires_grad for p in recorded.model.parameters())
    assert replayed.graphs > 0
    assert replayed.peak <= replayed.predicted
    assert replayed.gradients == runs[0].gradients


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_code_of_compiled_steps_runs_and_holds_no_more_than_predicted(name, caplog):
    recorded, schedule = planned(name)
    with on_device_of(schedule, recorded) as call:
        ran = dry_run(call, schedule, engine="compiled")
    assert "does not compile" not in caplog.text
    assert 0.99 * ran.predicted < ran.peak <= ran.predicted
    assert ran.gradients == sum(p.requires_grad for p in recorded.model.parameters())


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_are_refused(name):
    model, args, kwargs = ZOO[name].build("cpu")
    with pytest.raises(CaptureError, match=f"forward runs {name} on CUDA"):
        remate.plan(model, args, kwargs, budget="70%", device="cuda:h100", progress=None)
