"""The static operator tables say what the schemas of the installed PyTorch say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from remate.capture import facts
from remate_runtime.operators import tables as operators

# views that a functional graph of dense tensors never holds, or that are views only sometimes: capture refuses them
FOREIGN = (
    "sparse", "nested", "jagged", "_autocast_to", "_fw_primal", "_make_dual", "_unpack_dual", "indices", "values", "coalesce",
    "pin_memory", "contiguous", "reshape_as", "aten.reshape", "resolve_", "aten.to.", "_test_", "slice_inverse", "_as", ".Tensor",
    "tensor_indices_or_sections",
)  # fmt: skip


def functional() -> Iterator[Any]:
    for full in torch._C._dispatch_get_all_op_names():
        space, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        if space in ("aten", "prims"):
            found = getattr(getattr(getattr(torch.ops, space), name, None), overload or "default", None)
            if found is not None and not found._schema.is_mutable:
                yield found


def test_views() -> None:
    missing = {facts.name(o) for o in functional() if facts.view(o)} - operators.VIEWS
    assert [name for name in sorted(missing) if not any(part in name for part in FOREIGN)] == []


def test_random() -> None:
    missing = {facts.name(o) for o in functional() if facts.random(o)} - operators.RANDOM
    assert {name for name in missing if "inductor" not in name} == set()


@pytest.mark.parametrize("table", ["VIEWS", "RANDOM", "NOT_RANDOM"])
def test_tables_name_existing_operators(table: str) -> None:
    known = {facts.name(o) for o in functional()}
    assert set(getattr(operators, table)) - known == set()
