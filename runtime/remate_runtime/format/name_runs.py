"""Maps of names in which what repeats is written once: `{"h.[0-11]": {"ln.weight": "f32[8]"}}`. Needs no torch.

A key that ends in a run of numbers `[a-b]` stands for one name per number, in their order: with a type, each has it;
with a map, the entries of the map follow each name and a dot. So the order of all entries is that of the text, number
by number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import ScheduleError
from .limits import MAX_NAME, MAX_PARAMETERS
from .module_paths import NUMBER, RUN
from .signature import escape

_Item = tuple[tuple[str, ...], str]  # the parts of a name, and its type
_HINT = 'a type, or under a name that ends in a run a map: {"h.[0-11]": {"weight": "f32[8]"}}'


def folded(entries: Mapping[str, str]) -> dict[str, Any]:
    """The same entries with what repeats number by number written once; `unfolded` gives them back in this order."""
    return _fold([(tuple(name.split(".")), text) for name, text in entries.items()])


def _fold(items: list[_Item]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    ends, at = _ends(items), 0
    while at < len(items):
        parts, text = items[at]
        found = next(filter(None, (_repeated(items, ends, at, place) for place in range(len(parts)))), None)
        if found is None or found[0] in made:  # the same run again, behind other names: one map holds a key once
            made[".".join(parts)] = text
            at += 1
        else:
            name, inside, at = found
            made[name] = inside[0][1] if inside[0][0] == () else _fold(inside)
    return made


def _ends(items: list[_Item]) -> list[list[int]]:
    """ends[at][place]: where the items end that begin with the same parts, up to `place`, as item `at` and follow
    it."""
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
    """From item `at` on the same items for several numbers at `place` of their names: the name with the run, the items
    below it, and where they end. None if there are not two numbers."""
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
    """Every entry that the folded ones stand for, in order. add: is given each fault, with its pointer below `where`;
    if there are any the result is empty. Bounded: no more than MAX_PARAMETERS entries with names up to MAX_NAME are
    made."""
    faults: list[ScheduleError] = []

    def fault(found: ScheduleError) -> None:
        faults.append(found)
        add(found)

    count = _count(entries, 0, where, fault)
    if not faults and count > MAX_PARAMETERS:
        fault(ScheduleError("R072", f"over {MAX_PARAMETERS} entries", where))
    if faults:
        return {}
    made: dict[str, str] = {}
    for name, text in _unfold(entries, ""):
        if name in made:
            fault(ScheduleError("R031", f"two entries for {name[:120]!r}", where, "keep one of the two"))
            return {}
        made[name] = text
    return made


def _count(entries: dict[str, Any], length: int, where: str, fault: Callable[[ScheduleError], None]) -> int:
    """How many entries these stand for, each without faults. length: of the name before theirs, with its dot."""
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
        elif run is not None and isinstance(value, dict) and value:
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


def written_at(entries: Any, name: str) -> str:
    """The pointer, below that of the map, of the entry that stands for `name`; "" if there is none."""
    for key, value in entries.items() if isinstance(entries, dict) else ():
        rest = _below(key, name)
        if rest == "" and isinstance(value, str):
            return f"/{escape(key)}"
        if rest and isinstance(value, dict) and (inside := written_at(value, rest)):
            return f"/{escape(key)}{inside}"
    return ""


def _below(key: str, name: str) -> str | None:
    """What follows in `name` after one of the names that `key` stands for; None if it begins with none of them."""
    head, dot, tail = key.rpartition(".")
    run = RUN.fullmatch(tail)
    if run is None:
        return "" if key == name else None
    if not name.startswith(head + dot):
        return None
    number, _, rest = name[len(head + dot) :].partition(".")
    inside = NUMBER.fullmatch(number) and int(run[1]) <= int(number) <= int(run[2])
    return rest if inside else None
