"""`remate.fit`: the largest batch that a device can train, its schedule, and the throughput of each batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import msgspec

from remate_runtime.flat_step import expand
from remate_runtime.format import Schedule

from ..budget import BudgetError, parse_budget
from ..capture.recorded import called
from ..dims.requested_sizes import AUTO, read
from ..errors import DimsError
from ..schedule_tools.device_memory import OptimizerState, check_known
from .elsewhere import cost_for, gpu_elsewhere, warn_of_doubts
from .fit_search import Batch, DeviceLimits, Search
from .options import FrontierKeywords, options_of, takes
from .progress import silent, telling
from .settings import assumed, settings_of
from .untrained import require_training


class Fit(msgspec.Struct, frozen=True):
    """Result of `fit`.

    Attributes:
        schedule: Schedule for all sizes up to the largest that fits, planned at the largest.
        dim: Name of the size that varies.
        device_memory: Memory of the device, in bytes.
        batches: Figures by ascending size. The last is the largest that fits.
        complete: Whether all sizes were tried. Otherwise Ctrl-C or the time limit ended the search: a larger size may
            fit, and sizes may be missing.
    """

    schedule: Schedule
    dim: str
    device_memory: int
    batches: tuple[Batch, ...]
    complete: bool = True

    @property
    def largest(self) -> Batch:
        return self.batches[-1]

    @property
    def fastest(self) -> Batch:
        """The batch with the most samples per second; of equal ones the smallest."""
        return max(self.batches, key=lambda batch: (batch.per_second, -batch.size))


@takes(FrontierKeywords, dims=AUTO)
def fit(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device_memory: str | int,
    optimizer: OptimizerState,
    cost: str | None = None,
    device: str | None = None,
    cuda_context: int | None = None,
    reserve: str | int = 0,
    **options: Unpack[FrontierKeywords],
) -> Fit:
    """Find the largest batch with which a model trains on a device, and plan it.

    Parameters, buffers, inputs, the optimizer's state and the CUDA context are subtracted from the device's memory. The
    rest is the budget of a step. It differs from size to size, as inputs do.

    The schedule of the largest batch is planned with the requested effort. The other sizes use the best of all plans
    that are known by then and of a quick search, so their figures are at least achievable.

    Ctrl-C ends the current phase. In the search for the largest batch, the largest one that is known to fit is planned.
    In the search for its schedule, the best one so far is returned. After that, the sizes so far are returned.

    Args:
        model: The live model, or a call that `remate.record` recorded.
        args: Positional arguments of the call to plan.
        kwargs: Keyword arguments of the call to plan.
        device_memory: All memory of the device, in bytes (`"80GiB"`).
        optimizer: Optimizer whose state is on the device: `"adamw"`, `"sgd-momentum"`, the path of a class
            (`"torch.optim.Adafactor"`), a function from parameters to an optimizer, or bytes. Classes and functions
            make one step on the meta device.
        cost: As for `remate.plan`. The search itself estimates workspaces where costs are measured.
        device: As for `remate.plan`.
        cuda_context: Bytes of the CUDA context. Default: an estimate.
        reserve: Bytes of the device to keep free, for example for an average of the parameters.
        profile: As for `remate.plan`.
        cache: As for `remate.plan`.
        measure_again: As for `remate.plan`.
        time_limit: Limit of all searches together, in seconds. At most half of it is used to find the largest batch.
        gap: As for `remate.plan`.
        strategy: As for `remate.plan`.
        effort: As for `remate.plan`.
        differentiate: As for `remate.plan`.
        gradients: As for `remate.plan`. Gradients that are accumulated are in `.grad`, which is subtracted, too.
        dims: As for `remate.plan`. The first size that it names is varied, up to the end of its range if it has one.
            The other sizes are those of the example.
        live: As for `remate.plan`.
        name: As for `remate.plan`.
        note: As for `remate.plan`.
        progress: As for `remate.plan`.
        split: As for `remate.plan`. The search tries few numbers of tiles, the schedule all of them.

    Returns:
        The largest batch (to a 64th of it), its schedule, and samples per second for each batch that was tried.

    Raises:
        UnknownNameError: There is no such optimizer.
        DimsError: No size can be varied.
        InfeasibleError: Even the smallest size does not fit.
        RemateError: Whatever `remate.plan` raises.
    """
    check_known(optimizer)
    memory = parse_budget(device_memory).size
    if memory is None:
        raise BudgetError(f"the memory of a device is {device_memory!r}\n  hint: write 80GiB")
    reserved = parse_budget(reserve).size if reserve else 0
    if reserved is None:
        raise BudgetError(f"the reserve is {reserve!r}\n  hint: write 2GiB")
    chosen = options_of("fit", FrontierKeywords, options, device=device)
    gpu, call = gpu_elsewhere(device), called(model, args, kwargs)
    cost, settings = cost_for(gpu, cost), settings_of(chosen)
    require_training(call)
    warn_of_doubts(cost, gpu, call)
    with call.in_effect():
        sizes = read(options.get("dims", AUTO), call.model, call.args, call.kwargs)
    if sizes is None:
        raise DimsError(
            "no size of the example can be varied", hint='name one: dims={"x": {0: "b"}}, or a larger batch'
        )
    with telling(chosen.progress) as progress:
        say = progress or silent
        limits = DeviceLimits(memory, optimizer, cuda_context, assumed(chosen.gradients), reserved)
        search = Search(call, sizes, limits, cost, settings, chosen, gpu, say)
        schedule = search.planned(chosen.name or type(call.model).__name__, chosen.note)
        largest_size, figures = schedule.model.dims[search.dim].max, schedule.solve
        interrupted = figures.stopped_by == "interrupted"
        batches = [] if interrupted else search.batches(largest_size)
        base = figures.baseline_peak, figures.baseline_time
        largest = Batch(
            largest_size, figures.budget, *base, figures.peak, figures.time, len(expand(schedule).recomputes)
        )
        return Fit(schedule, search.dim, memory, (*batches, largest), not (interrupted or search.ended))
