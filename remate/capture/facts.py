"""Facts of an operator's schema: its name in a file, and whether it is a view, random, or writes to an argument."""

from __future__ import annotations

from functools import cache

import torch
from torch._ops import OpOverload

from remate_runtime import operators


def name(operator: OpOverload) -> str:
    """`aten.add.Tensor`; `.default` is left out."""
    full = f"{operator.namespace}.{packet(operator)}"
    return full if operator._overloadname == "default" else f"{full}.{operator._overloadname}"


def packet(operator: OpOverload) -> str:
    return operator._schema.name.split("::")[-1]


@cache
def view(operator: OpOverload) -> bool:
    """Whether outputs share the storage of an argument. A few operators do so without a note in the schema."""
    aliases = any(a.alias_info is not None and not a.alias_info.is_write for a in operator._schema.arguments)
    return name(operator) in operators.VIEWS or (aliases and any(r.alias_info for r in operator._schema.returns))


@cache
def random(operator: OpOverload) -> bool:
    """Whether the operator draws from the generator."""
    if name(operator) in operators.NOT_RANDOM:
        return False
    if name(operator) in operators.RANDOM or torch.Tag.nondeterministic_seeded in operator.tags:
        return True
    return any("Generator" in str(a.type) for a in operator._schema.arguments)


@cache
def writes(operator: OpOverload) -> bool:
    return operator._schema.is_mutable


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
