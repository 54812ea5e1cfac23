"""Write `schema/corpus/expected/NAME.json` for the valid files of the corpus: peak, time, floor and events of each.

    python tools/expected.py [--check]

With --check nothing is written, and the exit status is 1 if a file would change. `schema/README.md` says what they
hold.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from remate.strategy import StepInstance
from remate_runtime.flat_step import expand
from remate_runtime.format import GRADIENTS, Schedule, load
from remate_runtime.link import (
    BackwardStart,
    Deliver,
    Free,
    Linked,
    PageBack,
    PageGone,
    PageOut,
    PageReady,
    RecomputeRun,
    Run,
    Update,
    View,
    link,
    simulate,
)
from remate_runtime.support.files import write_atomically

CORPUS = Path(__file__).parents[1] / "schema" / "corpus"


def expected(path: Path) -> dict[str, Any]:
    """Expected results of the schedule at `path`, by the linker and the simulator. Raises ScheduleError."""
    return expected_of(load(path))


def expected_of(schedule: Schedule, *, floor: bool = True) -> dict[str, Any]:
    """Expected results of a schedule in memory. floor: include the floor."""
    expanded = expand(schedule)
    linked = link(expanded.graph, expanded.recomputes, expanded.pages)
    timeline = simulate(linked)
    host = timeline.memories.get("host")
    return {
        "peak": timeline.peak,
        **({"host_peak": host.peak} if host and host.peak else {}),
        "peaks": {kind: simulate(linked, kind).peak for kind in GRADIENTS},
        **({"paged": timeline.paged, "stall": timeline.stall} if timeline.paged else {}),
        "time": timeline.time,
        **({"floor": StepInstance(expanded.graph).floor} if floor else {}),
        "events": [
            {
                **event,
                **{name: m.during[at] for name, m in timeline.memories.items() if m.during[at] or name == "device"},
            }
            if "free" not in event
            else event
            for at, event in _events(linked)
        ],
    }


def _events(linked: Linked) -> list[tuple[int, dict[str, Any]]]:
    """(position, event) with names in place of numbers, for events that concern storages of the step."""
    graph, slots = linked.graph, set[int]()
    names = [value.name for value in graph.values]
    events: list[tuple[int, dict[str, Any]]] = []

    def emptied(values: tuple[int, ...]) -> list[str]:
        own = slots.intersection(values)
        slots.difference_update(own)
        return sorted(names[v] for v in own)

    for at, event in enumerate(linked.events):
        said: dict[str, Any] = {}
        match event:
            case Run() | RecomputeRun() | View():
                op = graph.operations[event.op]
                said[str(type(event).__struct_config__.tag)] = op.id
                if not isinstance(event, View) and event.overwrites is not None:
                    said["over"] = names[op.args[event.overwrites].value]
                if not isinstance(event, View) or op.reads[0] in slots:
                    slots.update(v for v in op.writes if v is not None)
            case Update():
                said = {"update": names[event.buffer], "to": names[event.value]}
                if event.preserves:
                    said["preserves"] = True
                    slots.add(event.buffer)
            case BackwardStart():
                said["backward_start"] = emptied(event.frees)
                slots.update(v for v, about in enumerate(graph.values) if about.kind == "tangent")
            case PageOut() | PageGone() | PageBack() | PageReady():
                said = {str(type(event).__struct_config__.tag): names[event.value], "to": event.to}
                if isinstance(event, PageBack) and graph.values[event.value].producer >= 0:
                    slots.add(event.value)
            case Deliver():
                said = {"deliver": [names[graph.gradients[number][0]] for number in event.gradients]}
            case Free():
                said["free"] = emptied(event.values)
                if not said["free"]:
                    continue
        events.append((at, said))
    return events


def text(expected_file: dict[str, Any]) -> bytes:
    """One event per line."""
    head = [f'  "{key}": {json.dumps(value)}' for key, value in expected_file.items() if key != "events"]
    events = ",\n".join(f"    {json.dumps(event)}" for event in expected_file["events"])
    return (
        "{\n" + ",\n".join([*head, f'  "events": [\n{events}\n  ]' if events else '  "events": []']) + "\n}\n"
    ).encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    stale = 0
    for path in sorted((CORPUS / "valid").glob("*.json")):
        target, fresh = CORPUS / "expected" / path.name, text(expected(path))
        if not target.exists() or target.read_bytes() != fresh:
            stale += 1
            print(target)
            if not args.check:
                target.parent.mkdir(exist_ok=True)
                write_atomically(target, fresh)
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
