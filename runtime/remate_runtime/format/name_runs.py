"""Maps of names with repetitions written once: `{"h.[0-11]": {"ln.weight": "f32[8]"}}`. Does not require torch.

A key that ends in a run of numbers `[a-b]` represents one name per number, in order. With a type, each name has it.
With a map, the map's entries follow each name and a dot. So the order of all entries is that of the text, number by
number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import ScheduleError
from .json_values import is_object
from .limits import MAX_NAME, MAX_PARAMETERS
from .module_paths import NUMBER, RUN
from .signature import escape

_Item = tuple[tuple[str, ...], str]  # the parts of a name, and its type
_HINT = 'a type, or under a name that ends in a run a map: {"h.[0-11]": {"weight": "f32[8]"}}'


def folded(entries: Mapping[str, str]) -> dict[str, Any]:
    """Return the entries with repetitions written once; `unfolded` is the inverse and keeps the order."""
    return _fold([(tuple(name.split(".")), text) for name, text in entries.items()])


def _fold(items: list[_Item]) -> dict[str, Any]:
    folded_entries: dict[str, Any] = {}
    ends, at = _ends(items), 0
    while at < len(items):
        parts, text = items[at]
        repeated = next(filter(None, (_repeated(items, ends, at, place) for place in range(len(parts)))), None)
        # The same run after other names: a map has each key only once.
        if repeated is None or repeated[0] in folded_entries:
            folded_entries[".".join(parts)] = text
            at += 1
        else:
            name, inside, at = repeated
            folded_entries[name] = inside[0][1] if inside[0][0] == () else _fold(inside)
    return folded_entries


def _ends(items: list[_Item]) -> list[list[int]]:
    """ends[at][place]: end of the items after item `at` that begin with the same parts, up to `place`."""
    ends: list[list[int]] = [[] for _ in items]
    for at in reversed(range(len(items))):
        parts = items[at][0]
        after = items[at + 1][0] if at + 1 < len(items) else ()
        alike = True
        for place, part in enumerate(parts):
            alike = alike and after[place : place + 1] == (part,)
            ends[at].append(ends[at + 1][place] if alike else at + 1)
    return ends


def _repeated(items: list[_Item], ends: list[list[int]], at: int, place: int) -> tuple[str, list[_Item], int] | None:
    """Find items that repeat for several numbers at `place` of their names, from item `at` on.

    Returns:
        The name with the run, the items below it, and their end. None for fewer than two numbers.
    """
    before, number = items[at][0][:place], items[at][0][place]
    if not NUMBER.fullmatch(number):
        return None
    size, last, inside = ends[at][place] - at, int(number), []
    end = at + size
    while (
        end < len(items) and items[end][0][: place + 1] == (*before, str(last + 1)) and ends[end][place] == end + size
    ):
        inside = inside or _inside(items[at : at + size], place)
        if _inside(items[end : end + size], place) != inside:
            break
        last, end = last + 1, end + size
    if last == int(number) or (size > 1 and any(not rest for rest, _ in inside)):
        return None
    return ".".join((*before, f"[{number}-{last}]")), inside, end


def _inside(items: list[_Item], place: int) -> list[_Item]:
    return [(parts[place + 1 :], text) for parts, text in items]


def unfolded(entries: Any, add: Callable[[ScheduleError], None], where: str = "") -> dict[str, str]:
    """Return every entry of the folded ones, in order.

    At most MAX_PARAMETERS entries with names up to MAX_NAME are created.

    Args:
        entries: The folded entries.
        add: Receives each fault, with its pointer below `where`. The result is empty then.
        where: Pointer of the map.
    """
    faults: list[ScheduleError] = []

    def fault(error: ScheduleError) -> None:
        faults.append(error)
        add(error)

    count = _count(entries, 0, where, fault)
    if not faults and count > MAX_PARAMETERS:
        fault(ScheduleError("R072", f"over {MAX_PARAMETERS} entries", where))
    if faults:
        return {}
    expanded: dict[str, str] = {}
    for name, text in _unfold(entries, ""):
        if name in expanded:
            fault(ScheduleError("R031", f"two entries for {name[:120]!r}", where, "keep one of the two"))
            return {}
        expanded[name] = text
    return expanded


def _count(entries: dict[str, Any], length: int, where: str, fault: Callable[[ScheduleError], None]) -> int:
    """Return the number of entries, each without faults. length: of the preceding name with its dot."""
    total = 0
    for key, value in entries.items():
        at = f"{where}/{escape(key[:MAX_NAME])}"
        run = RUN.fullmatch(key.rpartition(".")[2])
        times = 1 if run is None else int(run[2]) - int(run[1]) + 1
        if length + len(key) > MAX_NAME:
            fault(ScheduleError("R073", f"a name of more than {MAX_NAME} characters", at))
        elif times < 1:
            fault(ScheduleError("R014", "a run of numbers that ends before it begins", at, "write h.[0-11]"))
        elif isinstance(value, str):
            total += times
        elif run is not None and is_object(value) and value:
            total += times * _count(value, length + len(key) + 1, at, fault)
        else:
            fault(ScheduleError("R012", "expected a type" + ("" if run is None else " or a map of them"), at, _HINT))
    return total


def _unfold(entries: dict[str, Any], before: str) -> Iterator[tuple[str, str]]:
    for key, value in entries.items():
        head, dot, tail = key.rpartition(".")
        run = RUN.fullmatch(tail)
        numbers = (key,) if run is None else (f"{head}{dot}{n}" for n in range(int(run[1]), int(run[2]) + 1))
        for name in numbers:
            if isinstance(value, str):
                yield before + name, value
            else:
                yield from _unfold(value, f"{before}{name}.")


def written_at(entries: object, name: str) -> str:
    """Return the pointer, below that of the map, of the entry for `name`; "" without one."""
    for key, value in entries.items() if is_object(entries) else ():
        rest = _below(key, name)
        if rest == "" and isinstance(value, str):
            return f"/{escape(key)}"
        if rest and is_object(value) and (inside := written_at(value, rest)):
            return f"/{escape(key)}{inside}"
    return ""


def _below(key: str, name: str) -> str | None:
    """Return what follows in `name` after one of the names of `key`; None if it begins with none of them."""
    head, dot, tail = key.rpartition(".")
    run = RUN.fullmatch(tail)
    if run is None:
        return "" if key == name else None
    if not name.startswith(head + dot):
        return None
    number, _, rest = name[len(head + dot) :].partition(".")
    inside = NUMBER.fullmatch(number) and int(run[1]) <= int(number) <= int(run[2])
    return rest if inside else None
