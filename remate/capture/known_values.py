"""While tracing: the values of tensors that depend on nothing but shapes are known, so code may branch on them.

`torch.arange(n)` and what is computed from it is the same in every step, whatever parameters, buffers and inputs hold.
Code that reads such a value (are these the positions of one sequence?) gets eager's value.
This module uses unstable interfaces.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils.weak import WeakIdKeyDictionary

from .dispatch import dispatched_by

MAX_ELEMENTS = 1 << 20  # elements of a known tensor: enough for positions, not for masks of long sequences
_READS = torch.Tag.data_dependent_output
_RANDOM = torch.Tag.nondeterministic_seeded
_ROWS: dict[Any, int] = {torch.ops.aten.embedding.default: 1}  # argument with positions among the first one's rows
_UNINITIALISED = ("empty", "new_empty", "_efficientzerotensor", "resize")


@contextlib.contextmanager
def known_values(mode: FakeTensorMode) -> Generator[None]:
    """Give values to the fake tensors of `mode` that depend on no source."""
    usual: Any = mode.dispatch
    known: Any = WeakIdKeyDictionary()  # fake tensor -> real tensor

    def real(fake: Any) -> torch.Tensor | None:
        return known.get(fake) if isinstance(fake, FakeTensor) else fake

    def dispatch(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, OpOverload) or func.namespace == "prim":
            return usual(func, types, args, kwargs)
        if func in _ROWS and len(args) > _ROWS[func]:
            _check_rows(args[0], real(args[_ROWS[func]]))
        if func._schema.is_mutable:
            outputs = usual(func, types, args, kwargs)
            known.clear()  # the tensor that it writes may be an alias of any of them
            return outputs
        if any(type(each) is FakeTensor and each not in known for each in args):  # nearly always
            return usual(func, types, args, kwargs)
        flat, spec = _pytree.tree_flatten((args, kwargs or {}))
        tensors = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        if any(real(t) is None for t in tensors):
            return usual(func, types, args, kwargs)
        if _READS in func.tags and tensors:
            return _computed(func, [real(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat], spec)
        outputs = usual(func, types, args, kwargs)
        if _computable(func, outputs):
            values = [real(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
            with contextlib.suppress(RuntimeError, NotImplementedError):  # its value is unknown
                for fake, value in zip(_tensors(outputs), _tensors(_computed(func, values, spec)), strict=True):
                    known[fake] = value
        return outputs

    with dispatched_by(mode, dispatch):
        yield


def _check_rows(table: torch.Tensor, positions: torch.Tensor | None) -> None:
    """Raise an error for a position outside of a table, as eager does and fake tensors do not."""
    if positions is not None and positions.numel() and int(positions.max()) >= table.shape[0]:
        raise IndexError(f"position {int(positions.max())} of an embedding that has {table.shape[0]} rows")


def _computable(func: Any, outputs: object) -> bool:
    tensors = _tensors(outputs)
    name = func._schema.name.split("::")[-1]
    return (
        bool(tensors)
        and func.namespace in ("aten", "prims")
        and _RANDOM not in func.tags
        and not name.startswith(_UNINITIALISED)
        and all(isinstance(t, FakeTensor) and t.numel() <= MAX_ELEMENTS for t in tensors)
        and all(t.device.type != "meta" for t in tensors)
    )


_CPU = torch.device("cpu")


def _computed(func: Any, flat: list[Any], spec: Any) -> Any:
    """Compute on the CPU, whatever the device of the step, which may be absent."""
    with no_dispatch(), torch.no_grad():
        args, kwargs = _pytree.tree_unflatten([_on_cpu(leaf) for leaf in flat], spec)
        return func(*args, **kwargs)


def _on_cpu(leaf: object) -> Any:
    if isinstance(leaf, torch.device):
        return _CPU
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf


def _tensors(outputs: object) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
