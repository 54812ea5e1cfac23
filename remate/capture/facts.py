"""Facts of an operator's schema: its name in a file, and whether it is a view, random, or writes to an argument."""

from __future__ import annotations

from functools import cache
from typing import TypeGuard

import torch

from remate_runtime import operators
from remate_runtime.torch_private.operators import OpOverload, schema_of


def is_operator(value: object) -> TypeGuard[OpOverload]:
    """Whether a value is an operator, of a name and an overload."""
    return isinstance(value, OpOverload)


def name(operator: OpOverload) -> str:
    """`aten.add.Tensor`; `.default` is left out."""
    return operator.name().replace("::", ".")


def packet(operator: OpOverload) -> str:
    return operator.name().partition("::")[2].partition(".")[0]


@cache
def view(operator: OpOverload) -> bool:
    """Whether outputs share the storage of an argument. A few operators do so without a note in the schema."""
    schema = schema_of(operator)
    aliases = any(a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments)
    return name(operator) in operators.VIEWS or (aliases and any(r.alias_info for r in schema.returns))


@cache
def random(operator: OpOverload) -> bool:
    """Whether the operator draws from the generator."""
    if name(operator) in operators.NOT_RANDOM:
        return False
    if name(operator) in operators.RANDOM or torch.Tag.nondeterministic_seeded in operator.tags:
        return True
    return any("Generator" in str(a.type) for a in schema_of(operator).arguments)


@cache
def writes(operator: OpOverload) -> bool:
    return schema_of(operator).is_mutable


@cache
def unwritable(operator: OpOverload) -> str:
    """Why a file cannot describe the operator's effect, or "". A file knows views and random operators by name."""
    if view(operator) != (name(operator) in operators.VIEWS):
        return "returns a view of its argument"
    if random(operator) != (name(operator) in operators.RANDOM):
        return "draws random numbers"
    return ""


@cache
def refusal(operator: OpOverload) -> str:
    """Why no file may name the operator, or ""."""
    return operators.refusal(name(operator))
