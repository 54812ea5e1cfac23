"""Readable names for plans, from the operations that they recompute."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import msgspec

from remate_runtime.format import BASELINE, Page, Split, Statement


def fresh_name(
    plan: Sequence[Statement], operations: Sequence[str], recompute: Sequence[str], taken: Collection[str]
) -> str:
    """Return a name for an unnamed plan of a block. It says what the plan recomputes, so it has the same meaning in
    every file.

    The name ends in a hash of the plan if it is in use or does not cover the whole plan.

    Args:
        plan: The statements of the plan.
        operations: Local ids of the block's forward operations without views.
        recompute: Local ids of the operations that are recomputed.
        taken: Names of other plans of the block.
    """
    base, exact = _named(operations, recompute)
    if paged := any(isinstance(statement, Page) for statement in plan):
        base = f"page-{base}" if recompute else "page"
    if split := any(isinstance(statement, Split) for statement in plan):
        base = "split" if base == BASELINE else f"split-{base}"
    if exact and not paged and not split and base not in taken:
        return base
    encoded = msgspec.json.encode([msgspec.structs.astuple(statement)[:-1] for statement in plan])
    digest = hashlib.sha256(encoded).hexdigest()
    names = (f"{base}-{digest[:digits]}" for digits in range(_DIGITS, len(digest)))
    return next(name for name in names if name not in taken)


def _named(operations: Sequence[str], recompute: Sequence[str]) -> tuple[str, bool]:
    """Return the name, and whether all operations that it names are recomputed."""
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
_LONG = 30  # length of parts, in characters, from which on kinds are used
# The purpose of an operation, by words in its id. The first match counts. Plans of many parts are named by purpose.
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
    """Return how many leading components all paths share, without the last component."""
    shared = 0
    while all(len(p) > shared + 1 for p in paths) and len({p[shared] for p in paths}) == 1:
        shared += 1
    return shared


def _group(path: list[str]) -> str:
    """Return the submodule of a block that an operation belongs to: the first component that is not a number."""
    return next((p for p in path if not p.isdigit()), path[0])
