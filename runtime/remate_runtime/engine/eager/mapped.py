"""Parameters and gradients whose memory is a file without a name, mapped where they are.

Whoever reads or writes such a tensor finds its contents, whatever a step has done: only bytes of memory leave, and they
come back at a touch. So an optimizer, a hook or `state_dict` needs to know nothing about it. As after
`Module.share_memory`, a process that was forked sees what the other one writes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Any

import torch
from torch import nn

from ...devices.cpu_memory import note_mapped
from ...errors import ExecutionError
from ...torch_private.execution import storage_users

_DROP, _FETCH = 4, 22  # MADV_DONTNEED, MADV_POPULATE_READ
_FILES = (
    "/proc/self/./fd/"  # how only this module spells it: what torch.load maps is private, and loses what is written
)
_ALONE = 2  # references to the storage of a tensor that shares it with nobody: the tensor's, and that of who asks
_KEEP = "\n  delete the page statements that name it (`remate edit S.json --keep NAME`)"


def reason_against() -> str:
    """Why files cannot be mapped here; "" if they can."""
    return "" if sys.platform == "linux" else "parameters and gradients are paged, which needs Linux"


def check_parameter(name: str, tensor: torch.Tensor) -> None:
    """Raise ExecutionError for a parameter whose memory cannot be exchanged without anyone noticing."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        reason = "a process group is initialized, and parameters are paged in a process on its own only"
    elif not isinstance(tensor, nn.Parameter):
        reason = f"it is a {type(tensor).__name__}, and only an nn.Parameter keeps its identity in other memory"
    elif storage_users(tensor) > _ALONE:
        reason = "another tensor shares its storage (a view of it, or what .detach() or .data returned), and would not"
        reason += " see later updates"
    elif tensor.storage_offset() or tensor.untyped_storage().nbytes() != tensor.nbytes:
        reason = "it is part of a larger storage"
    else:
        return
    raise ExecutionError(f"{name} cannot be paged: {reason}{_KEEP}")


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether the memory of a tensor is a file of this module."""
    return (tensor.untyped_storage().filename or "").startswith(_FILES)


def mapped(file: int, like: torch.Tensor) -> torch.Tensor:
    """A tensor of the same size, strides and type whose memory is the file of this descriptor, which may be closed
    then. like: fills its storage."""
    with note_mapped():
        storage = torch.UntypedStorage.from_file(f"{_FILES}{file}", True, like.nbytes)
    return torch.empty(0, dtype=like.dtype).set_(storage, 0, like.size(), like.stride())  # type: ignore[arg-type]


def drop(tensor: torch.Tensor) -> None:
    """The bytes of a mapped tensor leave memory; its contents are in the file."""
    _advise(tensor, _DROP)


class Fetch:
    """Brings the bytes of a mapped tensor back, as a copy that a lane runs."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self._name, self._tensor, self.failed = name, tensor, ""

    def run(self) -> None:
        """Read all pages of the file. A kernel before 5.14 cannot be asked to: then the first touch reads them."""
        number = _advise(self._tensor, _FETCH)
        if number not in (0, errno.EINVAL):
            self.failed = os.strerror(number)

    def check(self) -> None:
        """Raise ExecutionError if it failed."""
        if self.failed:
            raise ExecutionError(
                f"{self._name} cannot be paged from its file: {self.failed}"
                "\n  the step is given up; the disk of TMPDIR may be broken: restart from a checkpoint on another one"
            )


def _advise(tensor: torch.Tensor, advice: int) -> int:
    """0, or the number of the error."""
    library: Any = ctypes.CDLL(None, use_errno=True)
    failed = library.madvise(
        ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.untyped_storage().nbytes()), advice
    )
    return ctypes.get_errno() if failed else 0
