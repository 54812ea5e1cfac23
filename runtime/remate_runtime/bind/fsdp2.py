"""Runs `fully_shard` (FSDP2) for the parts of a model within a schedule of the whole model.

A step does not call the parts, so their hooks do not run. Instead, the step calls the same objects of torch before and
after the operations that read a part's parameters (`link.borders`). They gather, free, prefetch and reduce with the
settings of each part (`reshard_after_forward`, `set_requires_gradient_sync`). Between these borders a parameter is a
tensor without storage. It remains the same object, so that references of autograd and of views stay valid.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import BindError
from ..flat_step.graph import Graph
from ..format.distributed import Sharded, sharded_text
from ..format.module_paths import fold_paths, unfold_paths
from ..torch_private.execution import NO_TASK, graph_task
from .modules import modules_by_path

# Private attributes of torch's objects, and methods with their numbers of arguments.
_Names = Mapping[str, int | None]
_OF_MODULE: _Names = {"_get_fsdp_state": 0}
_OF_STATE: _Names = {
    **{"_pre_forward": 3, "_post_forward": 3, "_pre_backward": 1},
    **dict.fromkeys(("_fsdp_param_groups", "_is_root", "_modules", "_mp_policy", "_state_ctx", "_training_state")),
}
_OF_CONTEXT: _Names = {"iter_forward_root": None}
_OF_GROUP: _Names = {
    **{"unshard": 0, "wait_for_unshard": 0, "reshard": 0, "post_backward": 0},
    **dict.fromkeys(("fsdp_params", "mesh_info", "_reshard_after_forward")),
}
_OF_PARAMETER: _Names = {"_module_info": None, "sharded_param": None}
_OF_GATHERED: _Names = {"_unsharded_param": None}
_OF_PLACE: _Names = {"module": None, "param_name": None, "shared_modules": None, "shared_param_names": None}
_BLOCKS = "plan one block, and shard what apply returns for each: block = apply(block, file); fully_shard(block)"


class Fsdp2:
    """The sharded parts of a model.

    Groups are numbered in the order of the model. Modules that `fully_shard` received as one list are one group.

    Args:
        model: The live model.
        modules: The parts, as returned by `sharded_parts`.

    Raises:
        BindError: A part has settings that a schedule of the whole model does not support.
    """

    def __init__(self, model: nn.Module, modules: Sequence[Any]) -> None:
        self.modules = tuple(modules)
        for module in modules:
            _look(module, _OF_MODULE)
        states = {id(module._get_fsdp_state()): module._get_fsdp_state() for module in modules}
        self._states: list[Any] = list(states.values())
        for state in self._states:
            _check(state)
        self._names = names = dict[int, list[str]]()  # paths by module
        for path, module in modules_by_path(model).items():
            names.setdefault(id(module), []).append(path)
        self._parameters: dict[str, tuple[int, Any]] = {}  # group and FSDPParam of each parameter, by name
        for number, state in enumerate(self._states):
            for group in state._fsdp_param_groups:
                for parameter in group.fsdp_params:
                    info = parameter._module_info
                    places = [(info.module, info.param_name)]
                    places += zip(info.shared_modules, info.shared_param_names, strict=True)
                    for holder, name in places:
                        self._parameters.update({f"{path}.{name}": (number, parameter) for path in names[id(holder)]})

    def groups(self, graph: Graph) -> dict[int, int]:
        """Return the group number of each parameter of a step that a group contains."""
        parameters = (at for at, value in enumerate(graph.values) if value.kind == "parameter")
        named = {at: self._parameters.get(graph.values[at].name) for at in parameters}
        return {at: parameter[0] for at, parameter in named.items() if parameter is not None}

    def process_groups(self) -> dict[str, str]:
        """Return the names of torch's process groups that gather and reduce, by what they do."""
        named = {group.group_name for state in self._states for group in process_groups(state)}
        return {f"FSDP2 (group {name})": name for name in sorted(named)}

    def whole(self, name: str) -> torch.Tensor | None:
        """Return the gathered tensor of a parameter, which may have no storage at the moment; None without a group."""
        parameter = self._parameters.get(name)
        return None if parameter is None else parameter[1]._unsharded_param

    def prepare(self) -> None:
        """Check the state of torch's objects before each call, and create the gathered tensors at the first call.

        Raises:
            BindError: The state is not the expected one.
        """
        in_backward = graph_task() != NO_TASK
        for state in self._states:
            if in_backward or state._training_state.name != "IDLE":
                raise BindError(
                    "the model is called within its own forward or backward (checkpointed, for one), and its blocks "
                    "are sharded\n  a schedule recomputes what it needs: call the model without torch.utils.checkpoint"
                )
            if state._is_root is not False or state._state_ctx.iter_forward_root is None:
                raise BindError(
                    "blocks of the model are sharded by fully_shard, and the model is not, or its forward was called "
                    "directly\n  call fully_shard(model), too, after its blocks, and then the model itself"
                )
            for group in state._fsdp_param_groups:
                if not all(hasattr(parameter, "_unsharded_param") for parameter in group.fsdp_params):
                    group.unshard()
                    group.wait_for_unshard()
                    group.reshard()
                    for parameter in group.fsdp_params:
                        _look(parameter, _OF_GATHERED)
                for parameter in group.fsdp_params:
                    parameter._unsharded_param.requires_grad_(parameter.sharded_param.requires_grad)

    def sharded(self) -> Sharded:
        """Return how the model is sharded, as a file would say it, of a model that is being called."""
        modules, kept, shards = list[str](), list[str](), 1
        root = self._states[0]._state_ctx.iter_forward_root
        for state in (root, *self._states):
            paths = [""] if state is root else [self._names[id(module)][0] for module in state._modules]
            modules += [] if state is root else paths
            for group in state._fsdp_param_groups:
                kept += [] if group._reshard_after_forward else paths
                shards = max(shards, getattr(group.mesh_info, "shard_mesh_size", 1))
        return Sharded(modules=fold_paths(modules), shards=shards, kept=fold_paths(kept))

    def act(self, does: str, group: int) -> None:
        """Perform the action of a border (`link.borders.Border`)."""
        state = self._states[group]
        match does:
            case "gather":
                state._pre_forward(state._modules[0], (), {})
            case "release":
                state._post_forward(state._modules[0], (), None)
            case "gather again":
                state._pre_backward(None)
            case "reduce":
                for group_of_parameters in reversed(state._fsdp_param_groups):
                    group_of_parameters.post_backward()
            case _:
                pass


def process_groups(state: Any) -> list[Any]:
    """Return torch's process groups of the state that `fully_shard` keeps for a module."""
    names = ("shard_process_group", "replicate_process_group")
    groups = [getattr(group.mesh_info, name, None) for group in state._fsdp_param_groups for name in names]
    return [group for group in groups if group is not None]


def sharding_fault(planned: Sharded, fsdp2: Fsdp2 | None) -> str:
    """Return how a model is sharded otherwise than its file says; "" if it is not. fsdp2: None if it is not sharded."""
    counted = f"the file counts memory for {sharded_text(planned)}"
    if fsdp2 is None:
        return f"{counted}, and fully_shard was not called on the parts of this model"
    live = fsdp2.sharded()
    same = live.shards == planned.shards and all(
        {*unfold_paths(getattr(live, field))} == {*unfold_paths(getattr(planned, field))}
        for field in ("modules", "kept")
    )
    return "" if same else f"{counted}, and the model has {sharded_text(live)}"


def _check(state: Any) -> None:
    _look(state, _OF_STATE)
    _look(state._state_ctx, _OF_CONTEXT)
    for group in state._fsdp_param_groups:
        _look(group, _OF_GROUP)
        for parameter in group.fsdp_params:
            _look(parameter, _OF_PARAMETER)
            _look(parameter._module_info, _OF_PLACE)
    policy = state._mp_policy
    if policy.output_dtype is not None or (policy.param_dtype is not None and policy.cast_forward_inputs):
        raise BindError(
            "the MixedPrecisionPolicy of a block casts its inputs or outputs, which a schedule of the whole "
            f"model does not do\n  {_BLOCKS}; or MixedPrecisionPolicy(param_dtype, reduce_dtype, "
            "cast_forward_inputs=False), and a plan of the model in that precision"
        )


def _look(value: object, names: _Names) -> None:
    """Raise BindError unless an object of torch has these attributes and accepts these numbers of arguments."""
    for name, count in names.items():
        try:
            member = getattr(value, name)
            if count is not None:
                inspect.signature(member).bind(*[None] * count)
        except (AttributeError, TypeError, ValueError):
            raise BindError(
                f"a schedule of the whole model does not support fully_shard of torch {torch.__version__}: "
                f"{type(value).__name__}.{name} differs from torch 2.13\n  {_BLOCKS}"
            ) from None
