"""Arguments of an operation: their JSON in a schedule file, and their form in a Graph.

`"%x"` refers to a value, `"%%x"` is the literal text `%x`, arrays nest, and an object with a single key represents what
JSON cannot: {"dtype": "f32"}, {"device": "main"}, {"float": "-inf"}, … {"number": "1 - %p"} follows from live
attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ScheduleError
from ..format.json_values import Json
from ..format.literals import spelling_fault
from ..format.number_text import names_of, parse_number, renamed, written_number
from ..format.suggest import did_you_mean
from .graph import Argument, Number, Ref


def to_graph(argument: Json, scope: Mapping[str, int], live: Mapping[str, int], reads: list[int]) -> Any:
    """Convert JSON to Graph form.

    Args:
        argument: The JSON.
        scope: Values by name.
        live: Live attributes by name.
        reads: The values that are read are appended here.

    Raises:
        ScheduleError: R021, R027, R030.
    """
    if isinstance(argument, str):
        if not argument.startswith("%"):
            return argument
        if argument.startswith("%%"):
            return argument[1:]
        value = resolve(argument, scope)
        reads.append(value)
        return Ref(value)
    if isinstance(argument, list | tuple):
        return tuple(to_graph(a, scope, live, reads) for a in argument)
    if isinstance(argument, dict) and "number" in argument and isinstance(argument["number"], str):
        return _number(argument["number"], live)
    if isinstance(argument, dict):
        fault = spelling_fault(argument)
        if fault is not None:
            raise fault
    return argument


def to_json(argument: Argument | list[Argument], name: Callable[[int], str]) -> Any:
    """Convert Graph form to JSON.

    Args:
        argument: The Graph form.
        name: Returns the local name of a value, without `%`.
    """
    if isinstance(argument, Ref):
        return "%" + name(argument.value)
    if isinstance(argument, Number):
        return {
            "number": written_number(renamed(parse_number(argument.text), lambda at: name(argument.values[int(at)])))
        }
    if isinstance(argument, str):
        return "%" + argument if argument.startswith("%") else argument
    if isinstance(argument, list | tuple):
        return [to_json(a, name) for a in argument]  # as a reader returns it
    return argument


def _number(text: str, live: Mapping[str, int]) -> Number:
    tree = parse_number(text)
    names = names_of(tree)
    for name in names:
        if name not in live:
            hint = did_you_mean(name, live, "name it in `live` of the block", "%")
            raise ScheduleError("R030", f"{name[:120]!r} is no live attribute here", hint=hint)
    return Number(
        written_number(renamed(tree, lambda name: str(names.index(name)))), tuple(live[name] for name in names)
    )


def resolve(reference: str, scope: Mapping[str, int]) -> int:
    """Return the value that `%name` refers to.

    Raises:
        ScheduleError: R030 or R035, with similar names.
    """
    value = scope.get(reference[1:]) if reference.startswith("%") else None
    if value is None:
        raise _missing(reference, scope)
    return value


def _missing(reference: str, scope: Mapping[str, int]) -> ScheduleError:
    name = reference.lstrip("%")
    operation = name.partition(":")[0]
    outputs = [f"%{other}" for other in scope if other.partition(":")[0] == operation]
    if outputs:
        return ScheduleError("R035", f"{reference[:120]!r} is no output", hint=f"write {', '.join(outputs[:8])}")
    hint = did_you_mean(name, scope, "name a value of this block", "%")
    return ScheduleError("R030", f"{reference[:120]!r} refers to no value here", hint=hint)
