"""Runs a step of a schedule without kernels, on tensors without memory, for any device.

The engine runs forward and backward as usual, and checks type, layout and storage of every result. The peak counts
storages, rounded as the device rounds them. It does not count workspaces of kernels. Of compiled steps, Inductor writes
the code, and all of it runs but the kernels.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator, Sequence
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from torch._guards import detect_fake_mode

from remate_runtime import apply, predicted_peak
from remate_runtime.engine import engine_of, in_cuda_graphs, without_copies, without_kernels
from remate_runtime.errors import EngineError
from remate_runtime.flat_step import expand
from remate_runtime.format import Block, Schedule, output_leaves
from remate_runtime.link import link, simulate
from remate_runtime.operator_calls import TORCH_DTYPES
from remate_runtime.operators import DEVICES
from remate_runtime.staleness import tensors_of

from ..capture.cuda.dry_graphs import DryRecorder
from ..capture.fake_storages import StorageCount
from ..capture.layouts import real_layouts
from ..capture.recorded import RecordedCall
from ..profile.devices import DEVICES as GPUS

ENGINES = ("eager", "arena", "compiled")
_cuda: Any = torch.cuda  # torch declares the properties of a device without types


class DryRun(msgspec.Struct, frozen=True):
    """Result of a dry run.

    Attributes:
        operations: Number of operations that ran, with recomputations.
        peak: Peak of storages, in bytes.
        predicted: Peak that the engine predicts without workspaces, in bytes.
        workspaces: Difference of the predicted peaks with and without workspaces, in bytes.
        gradients: Number of delivered gradients.
        state: Size of the state of a random generator on the device, in bytes.
        graphs: Number of CUDA graphs that a step replayed; 0 without them. The peak then has their private pool.
    """

    operations: int
    peak: int
    predicted: int
    workspaces: int
    gradients: int
    state: int
    graphs: int = 0

    @property
    def states(self) -> int | None:
        """Number of generator states that account for the difference to the prediction; None if they do not.

        Generator states are copied outside of operators, so a dry run does not see them.
        """
        difference = self.predicted - self.peak
        if not self.state or difference < 0:
            return None if difference else 0
        return None if difference % self.state else difference // self.state


def dry_run(
    call: RecordedCall,
    schedule: Schedule,
    namespaces: Sequence[str] = (),
    engine: str = "eager",
    cuda_graphs: bool = False,
) -> DryRun:
    """Run forward and backward of a call whose tensors are all fake.

    Args:
        call: The call, on the schedule's device.
        schedule: The schedule, of one size.
        namespaces: Permitted operators, as in `apply`.
        engine: One of ENGINES. Their code runs, except for kernels.
        cuda_graphs: As in `apply`. Recordings are replayed without kernels, and what they read is checked.

    Raises:
        ExecutionError, BindError, StaleModelError: As in a real step.
        EngineError: The engine cannot run dry, or cannot execute this schedule.
    """
    if engine not in ENGINES:
        raise EngineError(f"engine {engine!r} cannot run dry\n  use engine={' or engine='.join(map(repr, ENGINES))}")
    expanded, bare = expand(schedule), _without_workspaces(schedule)
    peaks = (simulate(link(step.graph, step.recomputes)).peak for step in (expanded, expand(bare)))
    workspaces = next(peaks) - next(peaks)
    resident = [*call.model.parameters(), *call.model.buffers(), *tensors_of((call.args, call.kwargs))]
    storages, cast = StorageCount(schedule.model.device, resident), schedule.model.autocast
    autocast = torch.autocast(schedule.model.device, TORCH_DTYPES[cast] if cast else None, enabled=bool(cast))
    mode: Any = detect_fake_mode(resident)
    executes: Any = {"compiled": without_kernels, "eager": without_copies}.get(engine, lambda: engine_of(engine))()
    recorder = DryRecorder(torch.device(schedule.model.device), lambda tensor: storages.leave_out([tensor]))
    watching: contextlib.AbstractContextManager[Any] = recorder if cuda_graphs else contextlib.nullcontext()
    if cuda_graphs:
        executes = in_cuda_graphs(executes, lambda device: recorder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        if engine == "compiled" and schedule.model.device == "cuda":
            stack.enter_context(_code())
        applied = apply(call.model, bare, verify=False, namespaces=tuple(namespaces), engine=executes)
        predicted = predicted_peak(applied)
        stack.enter_context(mode)
        stack.enter_context(real_layouts(mode))
        leaves = list(output_leaves(schedule.model.outputs))
        trained = [tensor for tensor in resident if tensor.requires_grad]

        loss_of: Any = _Loss  # torch declares `apply` without types

        def step() -> int:
            with autocast, storages, watching:
                results = list(tensors_of(applied(*call.args, **call.kwargs)))
            outputs = [output for output, leaf in zip(results, leaves, strict=True) if leaf.grad]
            held: list[torch.Tensor] = []
            loss = loss_of.apply(held, *outputs)
            with storages, watching:
                gradients: Any = torch.autograd.grad(loss, trained, allow_unused=True)
            return sum(gradient is not None for gradient in gradients)

        step()  # the first call may also run the model's own forward
        # torch never frees a storage that `set_` gave to a fake tensor, and recordings keep only the pool
        storages.begin(kept=not cuda_graphs)
        recorder.replays = 0
        delivered = step()
    count = len(expanded.graph.operations) + len(expanded.recomputes)
    state = DEVICES["cpu"].generator_state if schedule.model.device == "cpu" else 0
    peak = storages.peak + (recorder.reserved() if recorder.replays else 0)
    return DryRun(count, peak, predicted, workspaces, delivered, state, recorder.replays)


class _Loss(torch.autograd.Function):
    """A loss of outputs. Its backward allocates their gradients, which the step frees at their last read; `held` keeps
    those of scalars, as `loss.backward()` does."""

    @staticmethod
    def forward(ctx: Any, held: list[torch.Tensor], *outputs: torch.Tensor) -> torch.Tensor:
        ctx.held, ctx.types = held, [(tuple(o.shape), o.stride(), o.dtype, o.device) for o in outputs]
        return torch.zeros((), device="meta")  # neither it nor its gradient counts

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        given = [torch.empty_strided(size, lie, dtype=dtype, device=on) for size, lie, dtype, on in ctx.types]
        ctx.held += [gradient for gradient in given if gradient.numel() == 1]
        return None, *given


def _without_workspaces(schedule: Schedule) -> Schedule:
    """Return the schedule with kernels that need no workspace, because none runs."""

    def bare(block: Block) -> Block:
        forward, backward = (tuple(replace(op, workspace=0) for op in part) for part in (block.forward, block.backward))
        return replace(block, forward=forward, backward=backward)

    return replace(schedule, blocks={name: bare(block) for name, block in schedule.blocks.items()})


def _code() -> contextlib.AbstractContextManager[None]:
    """Inside, Inductor writes code for the GPU of the dry run."""
    from ..capture.cuda.generated import code_for
    from ..capture.cuda.no_gpu import Absent

    about: Any = _cuda.get_device_properties(0)
    if not isinstance(about, Absent):
        return contextlib.nullcontext()
    known = [device for device in GPUS.values() if device.gpu and device.gpu.name == about.name]
    processors = known[0].processors if known else GPUS["h100"].processors
    return code_for((about.major, about.minor), about.name, about.total_memory, processors)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Suppress torch's warning about addresses of fake tensors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        yield
