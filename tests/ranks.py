"""Starts the processes of tests that need several ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes


def run_ranks(run: Callable[..., Any], args: tuple[Any, ...], nprocs: int, *, join: bool = True) -> Any:
    """Call `run(rank, *args)` in each of the processes. Raises an error if one of them fails.

    Args:
        run: A function of a module.
        args: Its other arguments.
        nprocs: Number of processes.
        join: Wait for them. Otherwise, return their context.
    """
    return start_processes(_rank, (run, args), nprocs, join, start_method=_method())


def _method() -> str:
    """A fork has torch imported, which is most of what a new process costs. It does not work once CUDA or autograd has
    started threads, which a fork that tries it shows."""
    if torch.cuda.is_available():
        return "spawn"
    child = os.fork()
    if not child:
        try:
            torch.ones((), requires_grad=True).backward()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return "spawn" if os.waitpid(child, 0)[1] else "fork"


def _rank(rank: int, run: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Without the end of process groups: whoever frees the last reference to one waits for gloo's threads, which may
    wait for Python's lock."""
    with mock.patch.object(dist, "destroy_process_group"):
        run(rank, *args)
    if dist.is_initialized():
        dist.barrier()  # the others may still read what this rank sent
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
