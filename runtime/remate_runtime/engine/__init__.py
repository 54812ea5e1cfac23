"""Executes a linked step on a device. Requires torch.

`steps` prepares a step for the devices and the sets of trained parameters of its calls. `step_function` is the step as
autograd, hooks and the caller see it, whatever executes it: one node, its inputs and gradients, version checks, buffer
updates. An *engine* executes the operations between. `eager` is one; `cuda_graphs` replays the steps of another one on
a GPU.

To add an engine: write `compile(linked, contract, operators, device)` that returns a `CompiledStep` (forward,
inference, backward; `compiled_step` states the rules for each), in a folder beside `eager`; make it an `Engine` with a
name; add that to `ENGINES` in `registry`. An engine goes through `linked.events` by their types, and refuses with an
EngineError what it cannot execute. It is selected where the model runs (`apply(..., engine=name)`) and never written
into a schedule file. The tests of `tests/runtime` hold for every engine.
"""

from __future__ import annotations

from .compiled.artefacts import Artefacts, ns_of
from .compiled.compiled_engine import without_kernels
from .compiled.prediction import PredictedMemory, check_available, predict_memory
from .compiled_step import CompiledStep, Engine, Forwarded, MeasuredLane
from .eager.eager_engine import without_copies
from .eager.host_pages import HostPager, HostPages
from .eager.pages import Pager, StepPages
from .experimental.cuda_graphs import PoolLease, in_cuda_graphs
from .registry import ENGINES, engine_of
from .saved_hooks import of_torch
from .step_function import StepFunction, run_step
from .steps import Steps

__all__ = [
    "ENGINES",
    "Artefacts",
    "CompiledStep",
    "Engine",
    "Forwarded",
    "HostPager",
    "HostPages",
    "MeasuredLane",
    "Pager",
    "PoolLease",
    "PredictedMemory",
    "StepFunction",
    "StepPages",
    "Steps",
    "check_available",
    "engine_of",
    "in_cuda_graphs",
    "ns_of",
    "of_torch",
    "predict_memory",
    "run_step",
    "without_copies",
    "without_kernels",
]
