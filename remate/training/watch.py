"""Detects the modules that a script trains: the outermost modules in train mode whose outputs receive a gradient.

Hooks on all modules report the start and end of each call. Hooks on outputs report gradients and the kind of backward.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from remate_runtime.bind import mapped
from remate_runtime.staleness import tensors_of
from remate_runtime.torch_private.execution import NO_TASK, at_end_of_backward, graph_task
from remate_runtime.torch_private.pytree import tree_leaves

from ..capture.torch_api import nodes_below

WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "OptimizedModule")


class Backward:
    """The backward through a call of a module.

    Attributes:
        double: Whether it can be differentiated again.
        times: Number of backwards so far.
        beside_scalars: Whether the script computes with an output beside the scalar ones, so that it gets a gradient.
    """

    def __init__(self) -> None:
        self.double, self.times, self.beside_scalars = False, 0, False


class Listener:
    """Receives the events of `Watch`."""

    def called(self, module: nn.Module) -> None:
        """A training call of an outermost module begins."""

    def returned(self, module: nn.Module, inputs: tuple[object, ...]) -> None:
        """The call has ended. `inputs` are the shapes of its tensors, and whether each requires a gradient."""

    def aliases(self, module: nn.Module) -> bool:
        """Return whether the script may get aliases of a call's outputs."""
        return True

    def arrives(self, module: nn.Module) -> None:
        """A backward through a call begins."""

    def gradient(self, module: nn.Module, backward: Backward) -> None:
        """A backward through a call has ended; more may follow."""

    def between(self) -> None:
        """Neither a backward nor a training call is running."""

    def left(self) -> None:
        """The script has ended, and no event follows."""

    def stepped(self, parameters: set[int]) -> None:
        """An optimizer has made a step. `parameters` are the ids of its parameters."""


class _Running(NamedTuple):
    """A running call. `within` says whether it is a training call or nested in one."""

    module: nn.Module
    outermost: bool
    within: bool


class _Inside(threading.local):
    """The running calls of a thread, innermost last."""

    def __init__(self) -> None:
        self.stack: list[_Running] = []


class Watch:
    """Reports the events of training to `listener` within this context."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._inside = _Inside()
        self._handles: list[Any] = []

    def __enter__(self) -> Watch:
        self._handles = [
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(self._end, with_kwargs=True, always_call=True),
            register_optimizer_step_pre_hook(self._about_to_step),
            register_optimizer_step_post_hook(self._step),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._listener.left()

    def _begin(self, module: nn.Module, args: object) -> None:
        if torch.compiler.is_compiling():
            return
        stack = self._inside.stack
        within = bool(stack) and stack[-1].within
        outermost = not within and _trains(module)
        between = not stack and graph_task() == NO_TASK
        stack.append(_Running(module, outermost, within or outermost))
        if between or outermost:  # before a wrapper opens a range of the profiler, and before an evaluation
            self._listener.between()
        if outermost:
            self._listener.called(module)

    def _end(self, module: nn.Module, args: object, kwargs: object, output: object = None) -> Any:
        """Handle the end of a call. Returns the output if the script gets another one.

        If forward raises, torch calls this without an output. If forward is interrupted, torch does not call it.
        """
        if torch.compiler.is_compiling():
            return None
        stack = self._inside.stack
        while stack and stack[-1].module is not module:
            stack.pop()
        if not stack or not stack.pop().outermost or output is None:
            return None
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self._listener.returned(module, tuple((tuple(tensor.shape), tensor.requires_grad) for tensor in given))
        return self._await(module, output)

    def _await(self, module: nn.Module, output: Any) -> Any:
        """Report each backward through this call, once.

        Returns the output with aliases of tensors that the scalars follow from, which receive the gradients of the
        script only; None if there are none.
        """
        backward, running = Backward(), set[int]()

        def ended(task: int) -> None:
            running.discard(task)
            self._listener.gradient(module, backward)

        def arrives(gradients: object) -> None:
            task = graph_task()
            if task in running:
                return
            running.add(task)
            self._listener.arrives(module)
            backward.times += 1
            backward.double |= torch.is_grad_enabled()
            at_end_of_backward(lambda: ended(task))

        def arrives_beside(gradients: object) -> None:
            backward.beside_scalars = True

        outputs = [tensor for tensor in tensors_of(output) if tensor.requires_grad and not tensor.is_leaf]
        scalars = [tensor for tensor in outputs if tensor.dim() == 0]
        beside = [tensor for tensor in outputs if tensor.dim()] if scalars and self._listener.aliases(module) else []
        within = nodes_below(scalars) if beside else set[Any]()
        aliases = {id(tensor): tensor.view_as(tensor) for tensor in beside if tensor.grad_fn in within}
        for tensor in outputs:
            node = tensor.grad_fn  # a hook of the tensor itself would be one that a schedule has to refuse
            assert node is not None
            node.register_prehook(arrives)
        for tensor in beside:
            node = aliases.get(id(tensor), tensor).grad_fn
            assert node is not None
            node.register_prehook(arrives_beside)
        return mapped(output, lambda leaf: aliases.get(id(leaf), leaf)) if aliases else None

    def _about_to_step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        """Read measurements. A later call, in the closure of the optimizer or in a range around it, is another one."""
        if graph_task() == NO_TASK:  # otherwise the optimizer runs within backward
            self._listener.between()

    def _step(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self._listener.stepped({id(p) for group in optimizer.param_groups for p in group["params"]})
        self._about_to_step(optimizer, args, kwargs)  # a backward of its closure has ended


def _trains(module: nn.Module) -> bool:
    """Return whether a call of a module may be a training call.

    A recomputation of a part of forward within backward is not one.
    """
    if not module.training or not torch.is_grad_enabled() or type(module).__name__ in WRAPPERS:
        return False
    if vars(module).get("_is_replica") or graph_task() != NO_TASK:
        return False
    return any(parameter.requires_grad for parameter in module.parameters())
