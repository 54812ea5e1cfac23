"""The static operator tables match the schemas of the installed PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from remate.capture import facts
from remate_runtime.operators import tables as operators
from tools import operator_tables

# views that a functional graph of dense tensors never holds, or that are views only sometimes: capture refuses them
FOREIGN = (
    "sparse", "nested", "jagged", "_autocast_to", "_fw_primal", "_make_dual", "_unpack_dual", "indices", "values", "coalesce",
    "pin_memory", "contiguous", "reshape_as", "aten.reshape", "resolve_", "aten.to.", "_test_", "slice_inverse", "_as", ".Tensor",
    "tensor_indices_or_sections",
)  # fmt: skip


def test_views() -> None:
    missing = {facts.name(o) for o in operator_tables.functional() if facts.view(o)} - operators.VIEWS
    assert [name for name in sorted(missing) if not any(part in name for part in FOREIGN)] == []


def test_random() -> None:
    missing = {facts.name(o) for o in operator_tables.functional() if facts.random(o)} - operators.RANDOM
    assert {name for name in missing if "inductor" not in name} == set()


@pytest.mark.parametrize("table", ["VIEWS", "RANDOM", "NOT_RANDOM"])
def test_tables_name_existing_operators(table: str) -> None:
    known = {facts.name(o) for o in operator_tables.functional()}
    assert set(getattr(operators, table)) - known == set()


def test_the_file_is_what_torch_says_with_its_exceptions() -> None:
    """Of the version that the file was taken from; another torch is held to it operator by operator, above."""
    if torch.__version__.partition("+")[0] != operators.TABLES.torch:
        pytest.skip(f"the file is of torch {operators.TABLES.torch}")
    assert operator_tables.text(operator_tables.tables()) == operators.path().read_bytes(), (
        "run tools/operator_tables.py"
    )


@pytest.mark.parametrize("name", sorted(operators.IN_PLACE))
def test_an_in_place_form_writes_over_its_argument_and_fits(name: str) -> None:
    stated = operators.IN_PLACE[name]
    plain, form = (overload(n) for n in (name, stated.op))
    first, *rest = form._schema.arguments
    assert first.alias_info is not None
    assert first.alias_info.is_write
    given = plain._schema.arguments[1:]
    if stated.through is not None:  # the second argument is copied into a view that the rest of them make of the first
        view = overload(stated.through)
        assert stated.op == "aten.copy_"
        assert view._schema.arguments[0].alias_info is not None
        assert [(a.name, a.type) for a in view._schema.arguments[1:]] == [(a.name, a.type) for a in given[1:]]
        given, rest = given[:1], rest[:1]
    types = ["Tensor"] if name == "aten.mul.Scalar" else [str(a.type) for a in given]  # see tools/operator_tables.py
    assert [str(a.type) for a in rest] == types
    assert len(plain._schema.returns) == 1


def overload(name: str) -> Any:
    space, packet, *rest = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), packet), rest[0] if rest else "default")


def test_a_generator_state_has_the_size_that_the_file_gives() -> None:
    assert torch.get_rng_state().nbytes == operators.DEVICES["cpu"].generator_state


@pytest.mark.cuda
def test_a_generator_state_of_cuda_has_the_size_that_the_file_gives() -> None:
    assert torch.cuda.get_rng_state().nbytes == operators.DEVICES["cuda"].generator_state
