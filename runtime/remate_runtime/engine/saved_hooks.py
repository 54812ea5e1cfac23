"""The caller's hooks on saved tensors. A schedule saves nothing through autograd, so they never run."""

from __future__ import annotations

import warnings

from ..torch_private.execution import saved_tensor_hooks


def warn_of_saved_hooks(updates: bool) -> None:
    """Warn if the caller's hooks are active and results can differ.

    Hooks of the user's may change what the model saves, and thereby its gradients. A checkpoint runs the model's
    forward again in backward, which updates its buffers again. updates: Whether the step updates buffers.
    """
    hooks = saved_tensor_hooks(True)
    if hooks is None:
        return
    if updates and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint":
        warnings.warn(
            "torch.utils.checkpoint around the scheduled model saves nothing, and buffers are updated once: the model "
            "alone runs forward a second time in backward, and updates its buffers (running statistics) twice\n  leave "
            "the checkpoint out",
            UserWarning,
            stacklevel=8,
        )
    if not all(of_torch(hook) for hook in hooks):
        warnings.warn(
            f"the schedule ignores saved_tensors_hooks ({getattr(hooks[0], '__qualname__', hooks[0])!r}): it keeps "
            "what backward needs itself. If they change what is saved (compress or round it), gradients are not those "
            "of the model: call the scheduled model outside of them, or use the original model",
            UserWarning,
            stacklevel=8,
        )


def of_torch(hook: object) -> bool:
    """Return whether a hook is one of torch's (`save_on_cpu`, checkpoints), which return what they received."""
    return (getattr(hook, "__module__", None) or "").partition(".")[0] == "torch"
