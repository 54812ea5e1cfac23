"""Steps of GPUs that this machine need not have. Benchmarks get steps and times of a GPU only here, so that no figure
prices the step of the CPU as one of a GPU."""

from __future__ import annotations

from remate.api.options import PlanOptions
from remate.api.plan import DEFAULTS, prepare
from remate.partition.hierarchy import Hierarchy
from remate.profile.costing import costed
from remate.profile.devices import named_gpu
from remate_runtime.flat_step import Graph
from tests.models.case import Built


def step_on(gpu: str, built: Built, options: PlanOptions = DEFAULTS) -> Hierarchy:
    """Capture the step that CUDA runs on a GPU, with the costs of its roofline model. gpu: its name, `h200`."""
    model, args, kwargs = built
    return prepare(model, args, kwargs, gpu, options=options, gpu=named_gpu(f"cuda:{gpu}"))


def time_on(gpu: str, graph: Graph) -> int:
    """Return the nanoseconds of a step of CUDA on another GPU."""
    if graph.device != "cuda":
        raise ValueError(f"the step is for {graph.device}, not for {gpu}")
    return sum(op.ns for op in costed(graph, gpu).operations)
