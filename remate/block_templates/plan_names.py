"""Readable names for plans, from what they are recomputed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import msgspec

from remate_runtime.format import BASELINE, Page, Statement


def fresh_name(
    plan: Sequence[Statement], operations: Sequence[str], recompute: Sequence[str], taken: Collection[str]
) -> str:
    """A name for a plan of a block that has none, which means the same in every file: it says what is recomputed; where
    that is not all that it names, or the name is taken, it ends in a hash of the plan. taken: names of other plans of
    the block; the rest as of `plan_name`."""
    base, exact = _named(operations, recompute)
    if paged := any(isinstance(statement, Page) for statement in plan):
        base = f"page-{base}" if recompute else "page"
    if exact and not paged and base not in taken:
        return base
    said = msgspec.json.encode([msgspec.structs.astuple(statement)[:-1] for statement in plan])
    digest = hashlib.sha256(said).hexdigest()
    names = (f"{base}-{digest[:digits]}" for digits in range(_DIGITS, len(digest)))
    return next(name for name in names if name not in taken)


def plan_name(operations: Sequence[str], recompute: Sequence[str]) -> str:
    """A name from what is recomputed. operations: local ids of a block's forward operations, views left out; recompute:
    those (of them) that run again."""
    return _named(operations, recompute)[0]


def _named(operations: Sequence[str], recompute: Sequence[str]) -> tuple[str, bool]:
    """The name, and whether all operations that it names recompute."""
    if not recompute:
        return BASELINE, True
    again = set(recompute)
    if again >= set(operations):
        return "boundary-only", True
    if all(_is_norm(op) for op in recompute):
        return "recompute-norms", again >= {op for op in operations if _is_norm(op)}
    common = _common([op.split(".") for op in operations])
    parts = {op: _group(op.split(".")[common:]) for op in operations}
    groups = list(dict.fromkeys(parts[op] for op in operations if op in again))
    if len(groups) > 3 or len("-".join(groups)) > _LONG:
        parts = {op: _kind(op) for op in operations}
        groups = list(dict.fromkeys(parts[op] for op in operations if op in again))
    return f"recompute-{'-'.join(groups)}", again >= {op for op in operations if parts[op] in groups}


def _is_norm(op: str) -> bool:
    return "norm" in op.lower()


_DIGITS = 4  # of a hash
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
