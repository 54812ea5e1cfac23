"""The forward of a planned model: runs the schedule that fits the call, or the fallback."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import torch
from msgspec.structs import replace
from torch import nn

from ..bind.agreement import agree, sharded_actions
from ..bind.autocast_regions import AutocastRegion
from ..bind.call_form import form_of
from ..bind.changed_numbers import changed_numbers
from ..bind.fsdp2 import Fsdp2, sharding_fault
from ..bind.modes import tell_own_forward, tell_scheduled
from ..bind.sharding import refuse_sharded_since, sharded_parts
from ..errors import BindError, StaleModelError
from ..flat_step.expansion import expand
from ..format.schedule import Model, Schedule
from ..format.signature import input_leaves
from ..format.tensor_type import parse_type
from ..format.writer import encode
from ..link.linker import link
from ..link.simulator import simulate
from ..self_check import CHECK_FIRST, Checks, Program, SelfCheck
from ..staleness.attributes import collected_within
from ..staleness.trust import Stale
from ..support.callers import frames_to_caller
from ..support.plain_text import plain
from ..support.quantities import size
from ..torch_private import pytree
from ..torch_private.execution import outside_compiler
from .asides import Asides
from .calls_to_plan import plan_call, plan_parts_call
from .other_sizes import peak_at_sizes
from .own_backward import OwnBackward
from .padding import PaddedCall
from .programs import NO_PROGRAM, is_compiled_alone, refuse_other_attention, refuse_transforms, warn_of_compiler
from .scheduled_forward import MatchedCall, ScheduledForward

Otherwise = Literal["error", "original", "pad"]
_PLANNED_FORM = (
    "pass inputs of the planned form (x.contiguous()), or plan a schedule with inputs of this form, too: "
    "apply(model, [schedule, another]); if the model has changed, plan it again"
)
_EXACT = 4  # most sizes for which the expressions of a file give the peak of a call that no schedule fits


class Dispatch:
    """Selects a schedule for each call by mode, shapes, dtypes, autocast and plain arguments."""

    def __init__(
        self,
        model: nn.Module,
        steps: Sequence[ScheduledForward],
        otherwise: Otherwise,
        parts: Sequence[Schedule] = (),
        checks: Checks = CHECK_FIRST,
        stale: Stale = "error",
        asides: Asides | None = None,
    ) -> None:
        """Prepare the dispatch.

        Args:
            model: The live model.
            steps: Its schedules.
            otherwise: What to do with a call that no schedule fits.
            parts: The schedules of all parts of the enclosing model, if this model is a part.
            checks: The calls at which the self-check runs.
            stale: As in `apply`: whether a difference is an error or a warning.
            asides: What the parts of a model share.
        """
        self.model, self.steps, self.otherwise = model, tuple(steps), otherwise
        self._parts = parts or [step.schedule for step in steps if step.schedule.model.at]
        self._submodules = [module for module in model.modules() if module is not model]  # `check` refuses others
        self.checks = checks
        self.self_check = SelfCheck(checks, stale == "error")
        self._fixed = len(self.steps) == 1 and not self.steps[0].schedule.model.dims and otherwise == "error"
        self.calls = self.calls_aside = 0
        self.other_backward = ""  # why a backward pass needed the model's own forward
        self._asides = asides or Asides()
        self._region = AutocastRegion() if any(step.casts for step in self.steps) else None
        self._estimated = 0  # sizes, by expressions
        # Forms of calls (`bind.call_form`) that passed the self-check by schedule, and why others did not.
        self._passed_forms: dict[ScheduledForward, set[Hashable]] = {}
        self._refused_forms: dict[tuple[ScheduledForward, Hashable], str] = {}
        self._compared_sharding = False
        self._sharded: Fsdp2 | None = None
        self._attention: object = nn.functional.scaled_dot_product_attention
        self.__signature__ = inspect.signature(model.forward)  # libraries inspect the argument names of forward

    def stepped_aside(self, why: str, over: bool = False, estimate: str = "") -> None:
        """Warn, once for each kind of reason, that the model's own forward runs. Arguments as for `Asides.warn`."""
        self.calls_aside += 1
        self._asides.warn(why, over, estimate)

    def _other_backward(self, why: str) -> None:
        """Note that a backward pass needed the model's own forward."""
        self.other_backward = why
        self.stepped_aside(
            f"{why}; the model's own forward ran again in backward, without recomputation, so results may differ from "
            "those of eager PyTorch by rounding"
        )

    def changed(self) -> str:
        """Return what of the model differs from all schedules for its mode; "" if one fits."""
        reason = ""
        for step in self.steps:
            if step.schedule.model.training == self.model.training:
                try:
                    step.check()
                    step.check_tensors()
                except BindError as fault:
                    reason = reason or str(fault)
                else:
                    return ""
        return reason

    def gradient_layouts(self, warns: bool) -> list[str]:
        """Return the `differentiate=` for the layouts in which gradients arrived; [] if all were planned.

        Args:
            warns: Whether backward warns of the next ones.
        """
        for step in self.steps:
            step.layouts.warns = warns
        return next((step.layouts.differentiate for step in self.steps if step.layouts.arrived), list[str]())

    def refused_form(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """Return why the form of a call is refused; "" if it is not."""
        form = form_of(args, kwargs) if self._refused_forms else None
        return next((self._refused_forms[step, form] for step in self.steps if (step, form) in self._refused_forms), "")

    def changed_numbers(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> list[str]:
        """Return the names of the numbers among the inputs in which a call differs from the planned ones."""
        inputs = self.steps[0].schedule.model.inputs
        return list(changed_numbers(inputs, self.model.forward, args, kwargs))

    def __getattr__(self, name: str) -> Any:
        if name in ("__code__", "__globals__"):  # torch.export and torch.jit read these attributes of a forward
            raise AttributeError(NO_PROGRAM)
        raise AttributeError(f"'Dispatch' object has no attribute {name!r}")

    @outside_compiler
    def __call__(self, *args: object, **kwargs: object) -> Any:
        self.calls += 1
        model = self.model
        if self.calls == 1 and is_compiled_alone(self):
            warn_of_compiler()
        steps = [step for step in self.steps if step.schedule.model.training == model.training]
        if not steps:
            return self._other_mode(args, kwargs)
        refuse_transforms()
        refuse_other_attention(self._attention, (step.schedule for step in steps))
        if keys := collected_within(model):
            raise BindError(
                f"the enclosing forward collects {', '.join(keys)} of modules within it, which a schedule does not "
                "call\n  plan the model as a whole, or turn that off: "
                f"{', '.join(f'config.output_{key} = False' for key in keys)}"
            )
        if any(step.device.type == "meta" for step in steps):
            raise BindError(
                "the model is on the meta device, whose tensors have no data"
                "\n  model.to_empty(device=...) and load its weights; the schedule stays applied"
            )
        self._look_for_shards()
        faults: list[BindError] = []
        for step in steps:
            try:
                step.check()
                call = step.call(args, kwargs)
            except BindError as fault:
                faults.append(fault)
                continue
            form = form_of(args, kwargs) if self.checks.first else None
            refusal = self._refused_forms.get((step, form)) if self._refused_forms else None
            if refusal is None:
                try:
                    return self._run(step, call, args, kwargs, form)
                except _OtherFormError as error:
                    refusal = str(error)
            faults.append(_OtherFormError(refusal))
        refuse_sharded_since(model, distributed=any(step.schedule.model.distributed for step in steps))
        stale = next((fault for fault in faults if isinstance(fault, StaleModelError)), None)
        if stale is not None and (torch.is_grad_enabled() or self.otherwise != "original"):
            raise stale
        if self.otherwise == "pad":
            try:
                return self._padded(steps, args, kwargs)
            except BindError as fault:
                faults.append(fault)
        if self.otherwise == "original":
            self.stepped_aside(*self._no_schedule(faults[0], steps, args, kwargs))
            if self._region is not None:
                self._region.call(steps[0].device, scheduled=False)
            return model.forward(*args, **kwargs)
        text = str(faults[0]) if len(faults) == 1 else _none_of(steps, faults[: len(steps)])
        if len(faults) > len(steps):
            text += f"\n  padding: {faults[-1]}"
        if any(isinstance(fault, _OtherFormError) for fault in faults):
            raise BindError(text)  # a call in text has tensors of the usual form
        raise BindError(f"{text}\n  for this call: {self._plan_call(args, kwargs)}")

    def _run(self, step: ScheduledForward, call: MatchedCall, args: Any, kwargs: Any, form: Hashable) -> Any:
        """Run the step's forward, with the self-check if it is due. form: of the call, as `form_of` returns it."""
        sharded = self._sharded
        if self._region is not None:
            self._region.call(step.device, scheduled=True)
        if self.otherwise == "original" and sharded is None and torch.is_grad_enabled():
            call = call._replace(
                own=OwnBackward(step, self.model, call, (args, kwargs), self._other_backward).gradients
            )
        if self.checks.first:
            shapes = () if self._fixed else tuple([tensor.shape for tensor in call.inputs])
            trained = tuple([tensor.requires_grad for tensor in call.tensors])  # forward may ask for it
            each = step.schedule.model.untracked_sizes
            if turn := self.self_check.due(self.model, step, (shapes, trained), sharded is not None, form, each):
                program = step.program(call, args, kwargs, sharded)
                try:
                    outputs = self.self_check.run(turn, program, self._fixed)
                except StaleModelError as error:
                    if not turn.together:  # otherwise all ranks must run the schedule, or none
                        self._refuse_form(step, form, program, error.differences)
                    raise
                self._passed_forms.setdefault(step, set()).add(form)
                return outputs
        return step.run(call, sharded)

    def _refuse_form(self, step: ScheduledForward, form: Hashable, program: Program, differences: str) -> None:
        """Raise _OtherFormError if the call has a form in which the model may compute something else than planned.

        The next call of another form is checked again, because the model may also have changed.
        """
        passed = self._passed_forms.get(step, set[Hashable]())
        if not (program.other_layout or passed - {form}):
            return
        self.self_check.start_again()
        self._passed_forms[step] = set()
        what = program.other_layout or (
            "the inputs have another form than those of earlier calls (classes, memory layouts or requires_grad)"
        )
        refusal = f"{what}, and the model computes something else for them\n{differences}\n  {_PLANNED_FORM}"
        self._refused_forms[step, form] = refusal
        raise _OtherFormError(refusal)

    def _plan_call(self, args: Any, kwargs: Any) -> str:
        if self._parts:
            return plan_parts_call(self._parts)
        return plan_call(self.model, args, kwargs, self.steps[0].schedule)

    def _padded(self, steps: Sequence[ScheduledForward], args: Any, kwargs: Any) -> Any:
        """Run the step that needs the least padding.

        Raises:
            BindError: No step accepts the padded call. The message is that of the first step.
        """
        candidates, faults = list[tuple[PaddedCall, ScheduledForward]](), list[BindError]()
        for step in steps:
            try:
                candidates.append((step.padded(args, kwargs), step))
            except BindError as fault:
                faults.append(fault)
        if not candidates:
            raise faults[0]
        padded, step = min(candidates, key=lambda candidate: candidate[0].size)
        args_form = form_of(padded.args, padded.kwargs)
        outputs = self._run(step, step.call(padded.args, padded.kwargs), padded.args, padded.kwargs, args_form)
        return step.padding.cut(outputs, padded, args, kwargs)

    def _look_for_shards(self) -> None:
        """Collect the parts that `fully_shard` has sharded since `apply`.

        Raises:
            BindError: The schedules cannot run with sharded parts.
        """
        parts = sharded_parts(self._submodules)
        if not parts:
            self._compare_sharding(None)
            return
        if len(self.steps) > 1 or self.otherwise != "error" or any(step.schedule.model.dims for step in self.steps):
            raise BindError(
                "blocks of the model are sharded, and a call may run one of several steps: ranks that run different "
                "steps would gather and reduce in different orders, and wait for each other\n  apply one file of fixed "
                "sizes to the whole model, or the files to each block before it is sharded"
            )
        sharded = self._sharded
        if sharded is None or sharded.modules != parts:
            sharded = Fsdp2(self.model, parts)
            self._agree(sharded)
        sharded.prepare()
        if sharded is not self._sharded:
            self._sharded = sharded
            for step in self.steps:
                step.gather(sharded)
            self._compare_sharding(sharded)

    def _agree(self, sharded: Fsdp2) -> None:
        """Raise BindError unless all ranks gather and reduce in the same order. All ranks make their first call."""
        linked, schedule, named = self.steps[0].steps.linked, self.steps[0].schedule, sharded.process_groups()
        actions = sharded_actions(linked, sharded.groups(linked.graph), named.values())
        ended = tell_scheduled([*named.values()])
        agree(named, actions, lambda: [encode(schedule)], meanwhile="call its model", ended=ended)

    def _compare_sharding(self, sharded: Fsdp2 | None) -> None:
        """Warn, once, if the model is sharded otherwise than the budget assumes, and say whether the budget holds."""
        planned = self.steps[0].schedule.model.sharded
        if planned is None or self._compared_sharding:
            return
        self._compared_sharding = True
        if fault := sharding_fault(planned, sharded):
            fits = self._fits(sharded)
            warnings.warn(f"{fault}: gradients are right, and {fits}", UserWarning, stacklevel=frames_to_caller())

    def _fits(self, sharded: Fsdp2 | None) -> str:
        """Return whether the budget holds for a model that is sharded otherwise than planned."""
        again = "; plan again, with this fsdp= and shards="
        if sharded is None:
            return f"the budget may not hold{again}"
        step, budget = expand(self.steps[0].schedule), self.steps[0].schedule.solve.budget
        peak = simulate(link(replace(step.graph, sharded=sharded.sharded()), step.recomputes, step.pages)).peak
        over = peak > budget
        return f"the peak is {size(peak)}, {'over' if over else 'within'} the budget of {size(budget)}{again * over}"

    def _other_mode(self, args: Any, kwargs: Any) -> Any:
        model = self.model
        if model.training and self.otherwise != "original":
            raise BindError(
                "the schedule was planned in eval() mode\n  call model.eval(), or plan again in train() mode: "
                + self._plan_call(args, kwargs)
            )
        gradients = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in model.parameters())
        if (gradients or self._sharded is None) and (parts := sharded_parts(self._submodules)):
            tell_own_forward(parts, gradients)
        if gradients:
            mode = "train()" if model.training else "eval()"
            self.stepped_aside(
                f"the model is in {mode} mode with gradients on, so its own forward runs without a memory budget; "
                "call it under torch.no_grad(), or put it into the planned mode"
            )
        if self._region is not None:
            self._region.call(self.steps[0].device, scheduled=False)
        return model.forward(*args, **kwargs)

    def _no_schedule(
        self, fault: BindError, steps: Sequence[ScheduledForward], args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> tuple[str, bool, str]:
        """Return the reason, whether the call exceeds the budget, and a text about that.

        If the file names sizes, its expressions give the peak. Otherwise the peak is estimated in proportion to the
        sizes of the inputs.
        """
        nearest = max(steps, key=lambda step: step.schedule.solve.baseline_peak)
        solve, planned = nearest.schedule.solve, _elements(nearest.planned.model)
        lines = [line.removeprefix("  - ") for line in str(fault).splitlines()]
        reason = " ".join(lines[: 1 + lines[0].endswith(":")])
        why = f"{reason}; the model's own forward runs, without recomputation"
        if not planned or not torch.is_grad_enabled() or not self._asides.is_new(why, over=True):
            return why, False, ""
        given = sum(leaf.numel() for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        exact = None
        if self._estimated < _EXACT:
            self._estimated += 1
            exact = peak_at_sizes(nearest.schedule, args, kwargs, recomputing=False)
        peak, how, by = solve.baseline_peak * given // planned, "about ", " by the size of its inputs"
        if exact is not None:
            peak, how, by = exact, "", ", by the expressions of the file"
        over = peak > solve.budget
        beside = f"{'over' if over else 'within'} the budget of {size(solve.budget)}"
        return why, over, f". It takes {how}{size(peak)}{by}, {beside}"


class _OtherFormError(BindError):
    """A call has a form in which the model computes something else than the schedule."""


def _none_of(steps: Sequence[ScheduledForward], faults: Sequence[BindError]) -> str:
    reasons = [
        f"{plain(step.schedule.name)}: {str(fault).splitlines()[0]}" for step, fault in zip(steps, faults, strict=True)
    ]
    return "\n  - ".join(["no schedule is for this call", *reasons]) + (
        "\n  plan a schedule for it, or run the model's own forward: apply(..., otherwise='original')"
    )


def _elements(model: Model) -> int:
    return sum(parse_type(leaf.text).numel for leaf in input_leaves(model.inputs))
