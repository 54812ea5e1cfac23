"""`remate.fit_layouts`: the fastest way for a number of GPUs to train a model together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import msgspec
from msgspec.structs import replace

from remate_runtime.format import is_array, is_list
from remate_runtime.torch_private.distributed import pretended_ranks

from ..budget import BudgetError, parse_budget, parse_speed
from ..capture.recorded import RecordedCall
from ..errors import CaptureError, ProfileError, RemateError
from ..profile.costing import COMPILED, MEASURED, device_named
from ..schedule_tools.device_memory import OptimizerState, check_known
from .elsewhere import cost_for, gpu_elsewhere
from .layout_steps import ImpossibleError, LayoutStep, Machine, pipeline_step, plain_step
from .layouts import RankLayout, layout_named, layouts_of, with_batch
from .options import PlanOptions, SearchKeywords, options_of, takes
from .plan import Progress
from .progress import telling

Build = Callable[[RankLayout], Any]


class LayoutFit(msgspec.Struct, frozen=True):
    """Training with one layout.

    Attributes:
        layout: The layout.
        step: Its figures; None if it is not possible.
        refused: Why not; otherwise "".
    """

    layout: RankLayout
    step: LayoutStep | None = None
    refused: str = ""


class LayoutFits(msgspec.Struct, frozen=True):
    """Result of `fit_layouts`.

    Attributes:
        batch: Samples of all ranks for one step of the optimizer.
        device_memory: Memory of a device, in bytes.
        cost: The cost model.
        layouts: Those that fit, the fastest first, then the others.
    """

    batch: int
    device_memory: int
    cost: str
    layouts: tuple[LayoutFit, ...]

    @property
    def fastest(self) -> LayoutFit | None:
        """The fastest layout that fits; None if none does."""
        first = self.layouts[0] if self.layouts else None
        return first if first is not None and first.step is not None else None


@takes(SearchKeywords)
def fit_layouts(
    build: Build,
    layouts: Sequence[str | RankLayout] | int,
    batch: int,
    *,
    device_memory: str | int,
    optimizer: OptimizerState,
    device: str | None = None,
    cost: str | None = None,
    microbatch: int = 1,
    pipeline: str = "1F1B",
    fsdp: str | Sequence[str] | None = None,
    machine: int = 8,
    network: str = "50GB/s",
    cuda_context: int | None = None,
    reserve: str | int = 0,
    **options: Unpack[SearchKeywords],
) -> LayoutFits:
    """Find the fastest layout of ranks for a model and a batch, among those that fit into the memory of each device.

    Plans the step of one rank for each layout, with recomputation where memory requires it. No process group, no GPU
    and no other rank is needed: this process pretends to be rank 0. Times are predictions of the roofline model, with
    the communication of the layout, and without the optimizer.

    remate does not divide models. `build(layout)` does, as the training script does:

    - for `layout.pp == 1`, return `(model, args)` or `(model, args, kwargs)` of one rank, with `layout.microbatch`
      samples. If `layout.tp > 1`, call `parallelize_module(model, layout.mesh["tp"], ...)` first.
    - for `layout.pp > 1`, return `(stages, loss_fn, target)`, with a list of stages as for `remate.plan_pipeline`.
    - raise ValueError for a layout that the model does not support.

    Build large models on the meta device. `fully_shard` is not called: `fsdp` names the modules.

    Args:
        build: The function.
        layouts: Layouts (`["dp=8,tp=2,pp=1"]`), or a number of devices, of which all layouts are tried.
        batch: Samples of all ranks for one step of the optimizer. Gradients of several microbatches are accumulated.
        device_memory: All memory of a device, in bytes (`"80GiB"`).
        optimizer: As for `remate.fit`.
        device: As for `remate.plan`.
        cost: As for `remate.plan`, but not measured. Default: that of `device`, or `"cpu"`.
        microbatch: Samples of one call of a rank.
        pipeline: torch's schedule for `pp > 1`, as for `remate.plan_pipeline`.
        fsdp: Modules that `fully_shard` (FSDP2) is called on over the ranks of `dp`. Default: DistributedDataParallel.
        machine: GPUs of one machine, which the device's own links connect.
        network: Bandwidth of one GPU to other machines, each way.
        cuda_context: As for `remate.fit`.
        reserve: As for `remate.fit`.
        profile: Not used.
        cache: Not used.
        measure_again: Not used.
        time_limit: Seconds for each solve, as a safety net.
        gap: As for `remate.plan`.
        strategy: As for `remate.plan`.
        effort: As for `remate.plan`.
        differentiate: As for `remate.plan`.
        gradients: Must be `"retained"`: accumulation follows from the batch.
        dims: Must be None.
        live: As for `remate.plan`.
        name: Not used.
        note: Not used.
        progress: As for `remate.plan`.

    Returns:
        The layouts with memory and time, the fastest first, and the reason for each that is not possible.

    Raises:
        BudgetError: A layout or a size cannot be read.
        CaptureError: This process is a rank of a process group already.
        ProfileError: The costs do not exist, or would be measured.
        RemateError: Any error of `remate.plan`, if there is only one layout.
    """
    import torch.distributed as dist

    check_known(optimizer)
    chosen = options_of("fit_layouts", SearchKeywords, options, device=device, fsdp=fsdp)
    if chosen.gradients != "retained" or chosen.dims is not None:
        raise BudgetError("accumulation follows from the batch, and calls have one size\n  hint: leave out dims=")
    memory, reserved = parse_budget(device_memory).size, parse_budget(reserve).size if reserve else 0
    if memory is None or reserved is None:
        raise BudgetError("the memory of a device is a number of bytes\n  hint: write 80GiB")
    if not dist.is_available() or dist.is_initialized():
        hint = "call it in a process of its own"
        raise CaptureError("fit_layouts pretends to be rank 0, and this process has a process group", hint=hint)
    if cost in (MEASURED, COMPILED):
        hint = "leave it out, or name a device of the roofline model: h100, a100, cpu"
        raise ProfileError(f"cost={cost!r} runs the step, and layouts are planned without their ranks\n  hint: {hint}")
    gpu = gpu_elsewhere(device)
    cost = cost_for(gpu, cost or (None if gpu is not None else "cpu"))
    place = Machine(device_named(cost), gpu, memory, machine, parse_speed(network), optimizer, cuda_context, reserved)
    wanted = _wanted(layouts, batch, microbatch, machine)
    with telling(chosen.progress) as say:
        fits = [_fitted(build, layout, place, pipeline, chosen, say, only=len(wanted) == 1) for layout in wanted]
    fits.sort(key=lambda fit: float("inf") if fit.step is None else fit.step.time)
    return LayoutFits(batch, memory, cost, tuple(fits))


def _wanted(layouts: Sequence[str | RankLayout] | int, batch: int, microbatch: int, machine: int) -> list[LayoutFit]:
    """Return the layouts with their microbatches, or with the reason why there is none."""
    given = layouts_of(layouts, machine) if isinstance(layouts, int) else layouts
    fits: list[LayoutFit] = []
    for item in given:
        layout = layout_named(item) if isinstance(item, str) else item
        divided = with_batch(layout, batch, microbatch)
        if divided is None:
            why = f"{batch} samples are no multiple of {layout.dp} ranks with {microbatch} each"
            fits.append(LayoutFit(layout, refused=why))
        elif layout.tp > machine:
            fits.append(LayoutFit(divided, refused=f"tp={layout.tp} is more than the {machine} GPUs of a machine"))
        else:
            fits.append(LayoutFit(divided))
    return fits


def _fitted(
    build: Build,
    wanted: LayoutFit,
    place: Machine,
    pipeline: str,
    options: PlanOptions,
    say: Progress | None,
    only: bool,
) -> LayoutFit:
    """Plan one layout. only: raise errors of planning, instead of naming them in the result."""
    layout = wanted.layout
    if wanted.refused:
        return wanted
    if say:
        say(f"layout {layout}")
    try:
        return replace(wanted, step=_planned(build, layout, place, pipeline, options, say))
    except ImpossibleError as error:
        return replace(wanted, refused=str(error))
    except RemateError as error:
        if only:
            raise
        return replace(wanted, refused=str(error).splitlines()[0])


def _planned(
    build: Build, layout: RankLayout, place: Machine, pipeline: str, options: PlanOptions, say: Progress | None
) -> LayoutStep:
    from torch.distributed.device_mesh import init_device_mesh

    if options.fsdp is not None and layout.dp > 1:
        options = replace(options, shards=layout.dp, keep_gathered=False)
    else:
        options = replace(options, fsdp=None)
    with pretended_ranks(layout.dp * layout.tp):
        kind = "cpu" if place.gpu is None else "cuda"
        mesh = init_device_mesh(kind, (layout.dp, layout.tp), mesh_dim_names=("dp", "tp"))
        try:
            built = build(replace(layout, mesh=mesh))
        except ValueError as error:
            raise ImpossibleError(str(error)) from None
        if layout.pp == 1:
            return plain_step(_called(built), layout, place, options, say)
        if not (is_array(built) and isinstance(built, tuple) and len(built) == 3 and is_list(built[0])):
            raise BudgetError(f"build() must return (stages, loss_fn, target) for {layout}\n  hint: see fit_layouts")
        stages = [_called(stage) for stage in built[0]]
        return pipeline_step(stages, (built[1], built[2]), layout, place, pipeline, options, say)


def _called(built: Any) -> RecordedCall:
    """Return what `build` returns as a call."""
    if isinstance(built, RecordedCall):
        return built
    if not (is_array(built) and isinstance(built, tuple)) or not 2 <= len(built) <= 3:
        raise BudgetError("build() must return (model, args) or (model, args, kwargs)\n  hint: see fit_layouts")
    kwargs: Mapping[str, Any] = built[2] if len(built) == 3 else {}
    return RecordedCall.of(built[0], tuple(built[1]), dict(kwargs))
