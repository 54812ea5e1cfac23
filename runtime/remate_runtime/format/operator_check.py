"""Checks whether a file may name an operator, by its name alone. Does not require torch."""

from __future__ import annotations

import re
from collections.abc import Collection

from ..operators.tables import OPERATORS, namespace, permission, refusal
from .limits import MAX_NAME
from .suggest import did_you_mean

_OPERATOR = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*){1,2}")


def operator_fault(op: str, namespaces: Collection[str]) -> tuple[str, str, str] | None:
    """Return code, message and hint for an operator that a file may not name. namespaces: the permitted ones, including
    those of the file."""
    if len(op) > MAX_NAME or not _OPERATOR.fullmatch(op):
        return "R014", f"{op[:80]!r} is not an operator's name", "write namespace.name or namespace.name.overload"
    if namespace(op) not in namespaces:
        hint = f'known: {", ".join(sorted(namespaces))}; that of a library is listed in "namespaces"'
        return "R050", f"operators of the namespace {namespace(op)!r} are not allowed", hint
    name, _, overload = op.split(".", 1)[1].partition(".")
    if overload == "default":
        return "R014", f"{op!r}: the overload `default` is left out", f"write {op.removesuffix('.default')}"
    if (name.endswith("_") and not name.endswith("__")) or overload == "out" or overload.endswith("_out"):
        return (
            "R052",
            f"{op} writes over its arguments",
            "write the functional operator; in-place execution is derived",
        )
    if why := refusal(op):
        return (
            "R050",
            why,
            did_you_mean(op, sorted(OPERATORS), "name the operators that it is made of, as a planner does"),
        )
    if permission(op) and permission(op) not in namespaces:
        return "R050", f"{op} needs a permission by name", f'list "{op}" in "namespaces"'
    return None
