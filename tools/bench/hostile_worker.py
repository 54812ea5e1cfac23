"""Reads and checks one file of tools.bench.hostile in its own process, and prints the cost."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from remate.present.faults import render
from remate.present.text import count
from remate.schedule_tools.analysis import open_text
from remate.schedule_tools.check import findings
from remate_runtime.errors import ScheduleError
from remate_runtime.format import read
from tools.fuzz.oracle import expanded


def _peak() -> int:
    """Return this process's peak memory in bytes (Linux). `getrusage` would include that of the parent process."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10


def main(path: str) -> None:
    before, start = _peak(), time.process_time()
    data = read(path)
    try:
        opened = open_text(data)
        faults = findings(opened, data.decode())
        answer = "accepted"
    except ScheduleError as error:
        faults = error.faults
        answer = f"{error.code}, {count(len(faults), 'fault')}"
    render("text", "s.json", data, faults)
    report = {"answer": answer, "seconds": time.process_time() - start, "bytes": _peak() - before}
    print(json.dumps({**report, "expanded": expanded(data)}))


if __name__ == "__main__":
    main(sys.argv[1])
