"""Readable names for plans, from what they rerun."""

from __future__ import annotations

from collections.abc import Sequence

from remate_runtime.format import KEEP_ALL


def plan_name(operations: Sequence[str], rerun: Sequence[str]) -> str:
    """A name from what reruns. operations: local ids of a block's forward operations, views left out; rerun: those (of
    them) that run again."""
    if not rerun:
        return KEEP_ALL
    if set(rerun) >= set(operations):
        return "boundary-only"
    common = _common([op.split(".") for op in operations])
    groups = list(dict.fromkeys(_group(op.split(".")[common:]) for op in operations if op in set(rerun)))
    if all("norm" in op.lower() for op in rerun):
        return "rerun-norms"
    if len(groups) > 3 or len("-".join(groups)) > _LONG:
        groups = list(dict.fromkeys(_kind(op) for op in operations if op in set(rerun)))
    return f"rerun-{'-'.join(groups)}"


_LONG = 30  # characters of parts, from which on kinds say more
# What an operation is for, by words in its id: the first that fits. A block's plan of many parts is named by kinds.
_KINDS = (
    ("norms", ("norm", "rsqrt")),
    ("attention", ("attn.", "attention.", "softmax", "bmm", "scaled_dot")),
    ("matmuls", ("addmm", ".mm", "linear", "matmul")),
    ("convolutions", ("conv",)),
    ("dropout", ("dropout", "bernoulli")),
)


def _kind(op: str) -> str:
    return next((kind for kind, words in _KINDS if any(word in f".{op.lower()}" for word in words)), "pointwise")


def _common(paths: list[list[str]]) -> int:
    """How many leading components all paths share, their last component aside."""
    shared = 0
    while all(len(p) > shared + 1 for p in paths) and len({p[shared] for p in paths}) == 1:
        shared += 1
    return shared


def _group(path: list[str]) -> str:
    """The submodule of a block that an operation belongs to: the first component that is not a number."""
    return next((p for p in path if not p.isdigit()), path[0])
