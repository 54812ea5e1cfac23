"""What notices a change of a model: the digest at `apply`, the guard at a call, the self-check, each of them alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch

import remate_runtime.applied.scheduled_forward as scheduled_forward
from remate_runtime import BindError, RemateError, Schedule, apply

Change = Callable[[], None]
Build = Callable[[], tuple[Any, Change, Change]]  # a new model, what changes it, and what undoes that elsewhere


class Answer(NamedTuple):
    """What became of one case.

    Attributes:
        net: Whether digest or guard noticed the change, alone.
        check: Whether the self-check did, alone.
        exact: Whether the step, unchecked, is that of the changed model.
        harmless: Whether the change changes nothing of the step.
        error: An error that is none of the runtime's.
    """

    net: bool
    check: bool
    exact: bool
    harmless: bool
    error: str = ""

    @property
    def silent(self) -> bool:
        return not (self.net or self.check or self.exact)


class _Nothing:
    def check(self) -> None:
        pass


@contextmanager
def without_guard() -> Iterator[None]:
    """Neither digest nor guard."""
    with mock.patch.object(scheduled_forward, "unchecked", return_value=_Nothing()):
        yield


def answer(build: Build, schedule: Schedule, args: Sequence[Any], late: bool) -> Answer:
    """late: the change comes after `apply` and one good step; else before `apply`."""
    errors: list[str] = []

    def noticed(verify: Any) -> tuple[bool, Any]:
        model, change, undo = build()
        planned = None
        try:
            if late:
                planned = apply(model, schedule, verify=verify)
                step(planned, args)
            change()
            made = step(apply(model, schedule, verify=verify) if planned is None else planned, args)
        except BindError:
            return True, None
        except RemateError as error:
            errors.append(f"{type(error).__name__}: {error}")
            return True, None
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
            return False, None
        finally:
            undo()
        return False, made

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net, made = noticed("never")
        with without_guard():
            check, _ = noticed(1 if late else "first")
            if net:
                _, made = noticed("never")
        model, change, undo = build()
        before = step(model, args)
        change()
        try:
            after: Any = step(model, args)
        except Exception as error:
            after = repr(error)
        finally:
            undo()
    return Answer(net, check, same(made, after), same(before, after), errors[0] if errors else "")


def step(model: Any, args: Sequence[Any]) -> list[Any]:
    """Outputs and gradients of one step."""
    torch.manual_seed(0)
    parameters = [p for p in model.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.grad = None
    outputs = model(*args)
    loss = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
    loss.sum().backward()
    return [loss.detach(), *(None if p.grad is None else p.grad.clone() for p in parameters)]


def same(left: Any, right: Any) -> bool:
    if not isinstance(left, list) or not isinstance(right, list):
        return False
    return len(left) == len(right) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a is b
        for a, b in zip(left, right, strict=True)
    )
