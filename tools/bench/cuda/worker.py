"""One configuration of one model, in a separate process, which reads one command per line:

setup | peak | time STEPS        one JSON object each in answer, {"failed": traceback} where it did not work
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn

import remate
import remate_runtime
from remate.schedule_tools.addresses import reserved
from remate.schedule_tools.analysis import analyse
from remate.step_measurement.allocator import peak_bytes
from remate_runtime.format import Schedule, load
from remate_runtime.staleness import clear_gradients, compare_models, training_step

from ..ways import checkpointed_blocks
from .elsewhere import name_of_this_gpu, planned_elsewhere
from .slots import SLOTS, shared_file, slot
from .subjects import FULL, QUICK

_WARM_UP = 3
_ENGINES = {
    "remate": "eager",
    "remate-compiled": "compiled",
    "remate-graphs": "compiled",
    "remate-split": "eager",
    "remate-pages": "eager",
    "remate-elsewhere": "eager",
}


class Worker:
    def __init__(self, model: str, configuration: str, device: str, quick: bool, profile: str) -> None:
        self.model, self.quick, self.subject = model, quick, (QUICK if quick else FULL)[model]
        self.configuration, self.device, self.profile = configuration, device, profile
        self.folder = Path(profile).parent  # of the files that workers share
        self.on_gpu = torch.device(device).type == "cuda"
        self.made: Any = None
        self.graphs = False  # CUDA graphs, of which the allocator sees but the pool that stays reserved
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}

    def answer(self, command: str, *arguments: str) -> dict[str, Any]:
        if command == "setup":
            return self.setup()
        if command == "peak":
            return self.peak()
        return self.time(int(arguments[0]))

    def setup(self) -> dict[str, Any]:
        """Build, plan, and warm up within one of the slots, so that few steps are on the device at the same time.
        seconds: all of it, on the wall; waited: for a slot."""
        start = time.monotonic()
        model, self.args, self.kwargs = self.subject.build(self.device)
        kind, _, detail = self.configuration.partition("=")
        facts: dict[str, Any] = {}
        if kind == "profile":
            from remate.api.options import PlanOptions
            from remate.api.plan import prepare

            step = prepare(model, self.args, self.kwargs, options=PlanOptions(profile=self.profile))
            return {"operations": len(step.captured.graph.operations), "seconds": time.monotonic() - start}
        schedule = self._schedule(model, kind, detail) if kind in _ENGINES else None
        with slot(self.folder, "device", SLOTS) as facts["waited"]:
            self.made = self._made(model, kind, detail, schedule, facts)
            for _ in range(_WARM_UP):
                self.step()
            self._rest()
        return {**facts, "seconds": time.monotonic() - start}

    def _made(
        self, model: nn.Module, kind: str, detail: str, schedule: Schedule | None, facts: dict[str, Any]
    ) -> nn.Module:
        """Return the model of a configuration."""
        if schedule is not None:
            self.graphs = kind == "remate-graphs" and self.on_gpu
            return self._planned(model, schedule, _ENGINES[kind], facts)
        if kind == "checkpoint":
            return checkpointed_blocks(model, self.subject.blocks(model))
        return self._compiled(model, detail) if kind == "compile" else model

    def _schedule(self, model: nn.Module, kind: str, budget: str) -> Schedule:
        if kind == "remate-elsewhere":
            file, gpu = Path(f"{self.profile}.elsewhere.json"), name_of_this_gpu() if self.on_gpu else ""
            return planned_elsewhere(self.model, budget, file, gpu, self.quick)
        limit, split = int(budget) if budget.isdecimal() else budget, True if kind == "remate-split" else None
        paging: Any = {"host_budget" if self.on_gpu else "disk_budget": "16GiB"} if kind == "remate-pages" else {}
        effort = "quick" if self.quick else "normal"
        options: Any = {"budget": limit, "profile": self.profile, "split": split, "effort": effort, **paging}
        way = kind if split or paging else "remate"  # engines and graphs run the same plan
        file = self.folder / f"{self.model}.{way}.{limit}.json"
        return load(
            shared_file(file, lambda part: remate.plan(model, self.args, self.kwargs, **options).save(str(part)))
        )

    def _planned(self, model: nn.Module, schedule: Schedule, engine: str, facts: dict[str, Any]) -> nn.Module:
        scheduled = remate_runtime.apply(model, schedule, engine=engine, cuda_graphs=self.graphs)
        modelled = reserved(analyse(schedule).linked) if engine == "eager" else None
        facts["modelled_reserved"] = modelled.plain.reserved if modelled else 0
        facts["predicted"] = remate_runtime.predicted_peak(scheduled)
        facts["baseline"] = schedule.solve.baseline_peak
        facts["predicted_ms"] = schedule.solve.time / 1e6
        facts["predicted_eager_ms"] = schedule.solve.baseline_time / 1e6
        difference = compare_models(model, scheduled, self.args, self.kwargs)
        facts["difference"], facts["bitwise"] = difference.relative, difference.bitwise
        return scheduled

    def _compiled(self, model: nn.Module, budget: str) -> nn.Module:
        import torch._functorch.config as functorch

        if budget:
            functorch.activation_memory_budget = float(budget)  # type: ignore[attr-defined]
        compiled: Any = torch.compile(model)
        return compiled

    def step(self) -> None:
        training_step(self.made, self.args, self.kwargs)

    def peak(self) -> dict[str, Any]:
        """Bytes: `peak` and `step_reserved` above what is held between steps; `reserved` in all, with what is held.
        With graphs the peak is what is reserved beyond what is held: their pool, copies out of it, and gaps."""
        self._rest()
        if not self.on_gpu:
            return {"peak": peak_bytes(self.step, self.device), "reserved": 0, "step_reserved": 0}
        held, before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        self.step()
        torch.cuda.synchronize()
        reserved = torch.cuda.max_memory_reserved()
        peak = (reserved if self.graphs else torch.cuda.max_memory_allocated()) - held
        return {"peak": peak, "reserved": reserved, "step_reserved": reserved - before}

    def time(self, steps: int) -> dict[str, Any]:
        """Milliseconds of each of `steps` steps, and of issuing it to the device, after one that is not counted; then
        memory is given back, for others."""
        self.step()
        if self.on_gpu:
            torch.cuda.synchronize()
        taken = [self._timed() for _ in range(steps)]
        self._rest()
        return {"ms": [step for step, _ in taken], "issued": [issued for _, issued in taken]}

    def _timed(self) -> tuple[float, float]:
        start = time.perf_counter()
        if not self.on_gpu:
            self.step()
            return (taken := (time.perf_counter() - start) * 1e3), taken
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        self.step()
        last.record()
        issued = (time.perf_counter() - start) * 1e3
        last.synchronize()
        return first.elapsed_time(last), issued

    def _rest(self) -> None:
        """Hold no more than parameters while others have their turn."""
        clear_gradients(self.made, self.args, self.kwargs)
        gc.collect()
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("configuration")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--profile", default="profile.json")
    requested = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    if requested.device == "cpu":
        torch.set_num_threads(1)
    worker = Worker(
        requested.model, requested.configuration, requested.device, requested.quick, str(Path(requested.profile))
    )
    for line in sys.stdin:
        try:
            answer = worker.answer(*line.split())
        except BaseException:
            answer = {"failed": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
