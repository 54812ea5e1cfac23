"""What runs around operators: dispatch keys and modes, autocast, autograd's engine, tracing, storages, profiling."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad, profiler
from torch.fx import _symbolic_trace
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

__all__ = [
    "ABOVE_KERNELS",
    "DISABLED_TORCH_FUNCTION",
    "FSDP2_STATE",
    "NO_TASK",
    "OBSERVERS",
    "SAVED_TENSOR_HOOKS",
    "DisableAutocast",
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "ExcludeKeys",
    "TorchDispatchMode",
    "active_ddp",
    "at_end_of_backward",
    "clear_cublas_workspaces",
    "dispatch_modes",
    "function_modes",
    "graph_task",
    "is_batched",
    "is_profiled",
    "is_traced",
    "is_transformed",
    "keeps_graph",
    "outside_compiler",
    "record_cuda_allocations",
    "recorded_cuda_allocations",
    "saved_tensor_hooks",
    "set_gradients_enabled",
    "storage_users",
    "uncounted_write",
    "will_run",
    "without_dispatch_modes",
]

_C: Any = torch._C
_engine: Any = torch.autograd.Variable._execution_engine
_forward_ad: Any = forward_ad  # torch declares the level and the function on memory without types
_cuda_memory: Any = torch.cuda.memory
DisableAutocast = _C._DisableAutocast  # a context: operators run without autocast
ExcludeKeys = _C._ExcludeDispatchKeyGuard  # a context: operators skip kernels of these dispatch keys
DisableTorchFunction = _C.DisableTorchFunction  # a context without `__torch_function__`, of modes either
DisableTorchFunctionSubclass = _C.DisableTorchFunctionSubclass  # the same, but for modes
DISABLED_TORCH_FUNCTION = _C._disabled_torch_function_impl  # `__torch_function__` of classes without one
SAVED_TENSOR_HOOKS = _C._autograd  # holds `_push_`, `_pop_` and `_top_saved_tensors_default_hooks`
FSDP2_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state"  # the module of the hooks of `fully_shard`
# Modules of hooks that only observe: FlopCounterMode and MemTracker, CommDebugMode.
OBSERVERS = (
    "torch.utils.module_tracker",
    "torch.distributed._tools.mod_tracker",
    "torch.distributed.tensor.debug._comm_mode",
)
NO_TASK = -1  # `graph_task` outside of a backward pass
set_gradients_enabled: Callable[[bool], None] = _C._set_grad_enabled  # without the checks of torch.set_grad_enabled
without_dispatch_modes: Any = _disable_current_modes  # a context: dispatch modes see no operation
uncounted_write: Any = getattr(torch.autograd, "_unsafe_preserve_version_counter")  # noqa: B009 (private)
Function = TypeVar("Function", bound=Callable[..., Any])
# Newer versions of torch warn about the other name.
_is_fx_tracing: Callable[[], bool] = getattr(_symbolic_trace, "is_fx_symbolic_tracing", _symbolic_trace.is_fx_tracing)


def _above_kernels() -> Any:
    keys = _C.DispatchKeySet(_C.DispatchKey.ADInplaceOrView)
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"):
        keys = keys.add(getattr(_C.DispatchKey, key))
    return keys


ABOVE_KERNELS = _above_kernels()  # the dispatch keys of autograd: without them no history is recorded


def dispatch_modes() -> list[Any]:
    """Return the active dispatch modes, which see each operation."""
    return _get_current_dispatch_mode_stack() if _C._len_torch_dispatch_stack() else []


def function_modes() -> list[object]:
    """Return the active modes of `__torch_function__`, which may replace functions of torch."""
    return _get_current_function_mode_stack() if _C._len_torch_function_stack() else []


def graph_task() -> int:
    """Return the number of the running backward pass of this thread; `NO_TASK` outside of one."""
    return _C._current_graph_task_id()


def at_end_of_backward(callback: Callable[[], object]) -> None:
    """Call `callback` when the running backward pass ends."""
    _engine.queue_callback(callback)


def keeps_graph() -> bool:
    """Return whether the running backward pass keeps the graph (`retain_graph=True`)."""
    return _C._autograd._get_current_graph_task_keep_graph()


def will_run(node: object) -> bool:
    """Return whether the running backward pass runs an autograd node.

    Raises:
        RuntimeError: The node is a leaf that `torch.autograd.grad` requests.
    """
    return _C._will_engine_execute_node(node)


def saved_tensor_hooks(ignore_is_tracing: bool) -> Any:
    """Return the innermost pair of hooks on saved tensors; None without one. See `_top_saved_tensors_default_hooks`."""
    return _C._autograd._top_saved_tensors_default_hooks(ignore_is_tracing)


def is_batched(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is batched, by `torch.func.vmap` or by autograd's is_grads_batched."""
    return _C._functorch.is_batchedtensor(tensor) or _C._functorch.is_legacy_batchedtensor(tensor)


def is_transformed() -> bool:
    """Return whether a transform of torch.func or forward-mode differentiation is active."""
    return _C._are_functorch_transforms_active() or _forward_ad._current_level >= 0


def is_traced() -> bool:
    """Return whether torch.jit, torch.fx or AOTAutograd (torch.export) is tracing."""
    functional = _C._get_dispatch_mode(_C._TorchDispatchModeKey.FUNCTIONAL)  # set by AOTAutograd before it traces
    return _C._get_tracing_state() is not None or _is_fx_tracing() or functional is not None


def outside_compiler(function: Function) -> Function:
    """Exclude a function from torch.compile of code that calls it.

    The compiler would trace every operation of a step (41 s for a small model) and gain nothing. This is torch's own
    decorator for its optimizers. It loads the compiler at the first call, as torch.optim.Optimizer does when created.
    """
    decorate = getattr(torch, "_disable_dynamo")  # noqa: B009 (private, and the variant that loads the compiler late)
    return decorate(function)


def is_profiled() -> bool:
    """Return whether torch's profiler is active."""
    return profiler._is_profiler_enabled


def record_cuda_allocations(device: torch.device, enabled: bool) -> None:
    """Start or stop recording the history of the CUDA allocator on a device. Stopping clears it."""
    if enabled:
        _cuda_memory._record_memory_history(enabled="all", context=None, stacks="python", device=device)
    else:
        _cuda_memory._record_memory_history(enabled=None, device=device)


def recorded_cuda_allocations(device: torch.device) -> list[dict[str, Any]]:
    """Return the recorded events of a device's allocator, with `action`, `addr`, `size` and `time_us`."""
    of_device: Any = device  # torch declares that the index is never None
    index = torch.cuda.current_device() if of_device.index is None else of_device.index
    return _cuda_memory._snapshot(device)["device_traces"][index]


def active_ddp() -> Any:
    """Return the DistributedDataParallel whose forward is running; None without one."""
    return torch.nn.parallel.DistributedDataParallel._get_active_ddp_module()


def storage_users(tensor: torch.Tensor) -> int:
    """Return the number of tensors on a tensor's storage."""
    return _C._storage_Use_Count(tensor.untyped_storage()._cdata)


def clear_cublas_workspaces() -> None:
    """Free torch's cuBLAS workspaces, of which each stream has one."""
    clear = getattr(_C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
