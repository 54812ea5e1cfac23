"""`remate.fit`: the largest batch whose training fits a device, its schedule, and what each batch gives in a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from remate_runtime.flat_step import expand
from remate_runtime.format import Schedule

from ..budget import BudgetError, parse_budget
from ..capture.recorded import called
from ..dims.requested_sizes import AUTO, read
from ..errors import DimsError
from ..schedule_tools.device_memory import check_known
from .fit_search import Batch, DeviceLimits, Search
from .meant import check_meant
from .plan import Progress, assumed, settings_of


class Fit(msgspec.Struct, frozen=True):
    """schedule: for sizes up to the largest that fits, planned there. dim: what is varied. batches: by size, the last one is
    the largest that fits. device_memory: bytes."""

    schedule: Schedule
    dim: str
    device_memory: int
    batches: tuple[Batch, ...]

    @property
    def largest(self) -> Batch:
        return self.batches[-1]

    @property
    def fastest(self) -> Batch:
        """The one that gives the most samples in a second; of equals the smallest."""
        return max(self.batches, key=lambda batch: (batch.per_second, -batch.size))


def fit(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device_memory: str | int,
    optimizer: str,
    cost: str = "measured",
    dims: Any = AUTO,
    cuda_context: int | None = None,
    profile: str | Path | None = None,
    cache: bool = True,
    measure_again: bool = False,
    time_limit: float | None = None,
    gap: float = 0.002,
    strategy: str = "auto",
    effort: str = "normal",
    differentiate: Sequence[str] | None = None,
    gradients: str = "retained",
    live: Sequence[str] = (),
    name: str = "",
    note: str = "",
    progress: Progress | None = None,
) -> Fit:
    """The largest batch with which `model` trains on a device of `device_memory`, and what smaller ones give.

    device_memory: bytes ("80GiB"), of which parameters, buffers, inputs, the state of `optimizer` and the CUDA context
    (cuda_context: bytes, by default an estimate) are taken off; the rest is what a step may use, and differs from size to
    size, as inputs do. dims: as of `remate.plan`; the first size that it names is varied, up to the end of its range if it
    has one, and the others are as large as their ranges (the example) let them be. A peak is taken to grow with the size, and the largest one is
    found but for a 64th of it. cost: as of `remate.plan`; times
    are those of each size individually, measured or estimated there. The search itself needs no times; where costs are to be
    measured it estimates workspaces. gradients: as of `remate.plan`; those that are accumulated lie in `.grad`, which is taken off
    of the device, too. The other arguments are those of `remate.plan`.

    Ctrl-C while the schedule of the largest is solved returns the best by then, without the other sizes.
    Raises what `remate.plan` raises, UnknownNameError for an optimizer; DimsError where no size can be varied; InfeasibleError
    where not even the smallest size fits.
    """
    check_known(optimizer)
    memory = parse_budget(device_memory).size
    if memory is None:
        raise BudgetError(f"the memory of a device is {device_memory!r}\n  hint: write 80GiB")
    settings = settings_of("", strategy, effort, gap, time_limit, differentiate, live)
    call = called(model, args, kwargs)
    check_meant(call)
    say = progress or (lambda text: None)
    with call.in_effect():
        asking = read(dims, call.model, call.args, call.kwargs)
    if asking is None:
        raise DimsError(
            "no size of the example can be varied", hint='name one: dims={"x": {0: "b"}}, or a larger batch'
        )
    with_costs = {"profile": profile, "cache": cache, "measure_again": measure_again}
    search = Search(
        call, asking, DeviceLimits(memory, optimizer, cuda_context, assumed(gradients)), cost, settings, with_costs, say
    )
    schedule = search.planned(name or type(call.model).__name__, note)
    most, solved = schedule.model.dims[search.dim].max, schedule.solve
    smaller = [] if solved.stopped_by == "interrupted" else search.ladder(most)
    found = [search.batch(size) for size in smaller if size < most]
    base = solved.baseline_peak, solved.baseline_time
    largest = Batch(most, solved.budget, *base, solved.peak, solved.time, len(expand(schedule).recomputes))
    return Fit(schedule, search.dim, memory, (*found, largest))
