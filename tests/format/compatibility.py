"""What a change of the format's types means for files and readers that exist: nothing, a revision, or a version.

A revision only adds: readers of the new one read all older files, and older readers read new files that use none of
what was added. Anything else is a version, with a migration.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from remate.schedule_tools.schema_file import load_schema
from remate_runtime.format import schedule as file_format

Described = dict[str, dict[str, dict[str, Any]]]  # object -> field -> {"type": text, "required": bool}
_QUALIFIED = re.compile(r"<class '([^']*)'>|[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)+")


def of_types() -> Described:
    """Field descriptions of the structs of `remate_runtime.format`."""
    by_name: Described = {}
    for name, kind in vars(file_format).items():
        own = isinstance(kind, type) and kind.__module__.startswith(f"{file_format.__package__}.")
        if own and issubclass(kind, msgspec.Struct):
            fields = msgspec.structs.fields(kind)
            if fields:
                by_name[name] = {f.encode_name: {"type": _text(f.type), "required": f.required} for f in fields}
    return by_name


def of_schema() -> Described:
    """Field descriptions of the JSON Schema: its root, and definitions with properties."""
    schema = load_schema()
    objects = {"schedule": schema, **{n: d for n, d in schema["$defs"].items() if "properties" in d}}
    return {name: _properties(definition) for name, definition in objects.items()}


def needed(old: Described, new: Described) -> tuple[str, list[str]]:
    """("", "revision" or "version", with the changes that require it)."""
    added, broken = [], []
    for name in {**old, **new}:
        if name not in new:
            broken.append(f"{name} is gone")
        elif name not in old:
            added.append(f"{name} is new")
        else:
            _fields(name, old[name], new[name], added, broken)
    return ("version", broken) if broken else ("revision", added) if added else ("", [])


def _fields(name: str, old: dict[str, Any], new: dict[str, Any], added: list[str], broken: list[str]) -> None:
    for field in {**old, **new}:
        where = f"{name}.{field}"
        if field not in new:
            broken.append(f"{where} is gone")
        elif field not in old:
            (broken if new[field]["required"] else added).append(
                f"{where} is new" + " and required" * new[field]["required"]
            )
        elif old[field]["type"] != new[field]["type"]:
            broken.append(f"{where} was {old[field]['type']} and is {new[field]['type']}")
        elif new[field]["required"] and not old[field]["required"]:
            broken.append(f"{where} became required")
        elif old[field]["required"] and not new[field]["required"]:
            added.append(f"{where} became optional")


def _properties(definition: dict[str, Any]) -> dict[str, dict[str, Any]]:
    required = definition.get("required", ())
    return {
        name: {"type": _kind(about), "required": name in required} for name, about in definition["properties"].items()
    }


def _kind(about: dict[str, Any]) -> str:
    """The part of a JSON Schema that determines the kind of a value. The corpus tests limits."""
    said = {key: about[key] for key in ("type", "$ref", "const", "enum") if key in about}
    for key in ("items", "additionalProperties"):
        if isinstance(about.get(key), dict):
            said[key] = _kind(about[key])
    return msgspec.json.encode(said, order="sorted").decode()


def _text(kind: Any) -> str:
    """A type as text that does not depend on the module of a class."""
    return _QUALIFIED.sub(lambda match: (match[1] or match[0]).rpartition(".")[2], str(kind))
