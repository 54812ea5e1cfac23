"""Refuses outputs whose classes `apply` cannot import: a file has only the name of a record's class."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from remate_runtime.bind import children, is_object, record_class

from ..errors import CaptureError


def refuse_records(model: torch.nn.Module, returned: object) -> None:
    """Raise CaptureError for a dataclass or named tuple whose class cannot be resolved by name from the model's
    code."""
    for path, record, fields in _records(returned, ""):
        kind = type(record)
        if record_class(kind.__name__, fields, model) is not kind:
            subject = f"output {path!r} is" if path else "forward returns"
            raise CaptureError(
                f"{subject} a record of the class {kind.__qualname__!r}, which a schedule does not find by its name "
                f"{kind.__name__!r}",
                hint="define the class once, at the top level of a module that the model's own module imports, or "
                "return a tuple or dict",
            )


def _records(node: object, path: str) -> Iterator[tuple[str, object, tuple[str, ...]]]:
    inner = None if is_object(node) else children(node)  # objects are no outputs at all
    if inner is None:
        return
    kind, parts = inner
    if kind == "record":
        yield path, node, tuple(parts)
    for key, part in parts.items():
        yield from _records(part, f"{path}.{key}" if path else key)
