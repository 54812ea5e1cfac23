"""The versions of PyTorch whose kernels for CUDA the rules of `capture.cuda` state. Needs no PyTorch."""

from __future__ import annotations

RULED = ((2, 11), (2, 12), (2, 13), (2, 14))


def without_rules(version: str) -> str:
    """Return a warning about a step that was captured by rules of another PyTorch, or ""."""
    try:
        if tuple(map(int, version.split("+")[0].split(".")[:2])) in RULED:
            return ""
    except ValueError:  # a version in a file can be any text
        pass
    known = " to ".join(f"{major}.{minor}" for major, minor in (RULED[0], RULED[-1]))
    return (
        f"the rules for CUDA are those of torch {known}, and this is the step of torch {version[:80]}, which may run "
        f"other kernels: plan with one of these, or on a GPU"
    )
