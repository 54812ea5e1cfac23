"""Parameters and gradients in the memory map of an unnamed file.

Such a tensor can be read and written at any time. Only its bytes leave memory, and the system reads them back at the
next access. So optimizers, hooks and `state_dict` work without change. As after `Module.share_memory`, a forked process
shares the memory.
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
# Only this module uses this spelling. Maps of torch.load are private, and lose what is written.
_FILES = "/proc/self/./fd/"
_ALONE = 2  # references to a storage that is not shared: the tensor's, and that of the call that counts them
_KEEP = "\n  delete the page statements that name it (`remate edit S.json --keep NAME`)"


def reason_against() -> str:
    """Return why files cannot be mapped here; "" if they can."""
    return "" if sys.platform == "linux" else "parameters and gradients are paged, which needs Linux"


def check_parameter(name: str, tensor: torch.Tensor) -> None:
    """Raise ExecutionError for a parameter whose memory cannot be replaced unnoticed."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        reason = "a process group is initialized, and parameters are paged in a process on its own only"
    elif not isinstance(tensor, nn.Parameter):
        reason = f"it is a {type(tensor).__name__}, and only an nn.Parameter keeps its identity in other memory"
    elif storage_users(tensor) > _ALONE:
        reason = "another tensor shares its storage (a view of it, or a result of .detach() or .data), and would not"
        reason += " see later updates"
    elif tensor.storage_offset() or tensor.untyped_storage().nbytes() != tensor.nbytes:
        reason = "it is part of a larger storage"
    else:
        return
    raise ExecutionError(f"{name} cannot be paged: {reason}{_KEEP}")


def is_mapped(tensor: torch.Tensor) -> bool:
    """Return whether the memory of a tensor is a file of this module."""
    return (tensor.untyped_storage().filename or "").startswith(_FILES)


def mapped(file: int, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose memory is a file.

    Args:
        file: Descriptor of the file. It may be closed afterwards.
        like: A tensor with the wanted size, strides and dtype, which fills its storage.
    """
    storages: Any = torch.UntypedStorage  # torch declares `from_file` without types
    with note_mapped():
        storage = storages.from_file(f"{_FILES}{file}", True, like.nbytes)
    return torch.empty(0, dtype=like.dtype).set_(storage, 0, like.size(), like.stride())


def drop(tensor: torch.Tensor) -> None:
    """Free the memory of a mapped tensor. Its contents stay in the file."""
    _advise(tensor, _DROP)


class Fetch:
    """Reads the bytes of a mapped tensor back into memory, as a copy in a lane."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self._name, self._tensor, self.failed = name, tensor, ""

    def run(self) -> None:
        """Read all pages of the file. Kernels before 5.14 have no call for it; there the first access reads them."""
        number = _advise(self._tensor, _FETCH)
        if number not in (0, errno.EINVAL):
            self.failed = os.strerror(number)

    def check(self) -> None:
        """Raise ExecutionError if the read failed."""
        if self.failed:
            raise ExecutionError(
                f"{self._name} cannot be paged from its file: {self.failed}"
                "\n  the step is given up; the disk of TMPDIR may be broken: restart from a checkpoint on another one"
            )


def _advise(tensor: torch.Tensor, advice: int) -> int:
    """Call `madvise`. Return 0, or the number of the error."""
    library: Any = ctypes.CDLL(None, use_errno=True)
    failed = library.madvise(
        ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.untyped_storage().nbytes()), advice
    )
    return ctypes.get_errno() if failed else 0
