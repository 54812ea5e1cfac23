"""Reading a file does nothing but compute: no other file, no network, no process, no code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pathlib import Path

from remate.schedule_tools.analysis import open_text
from remate.schedule_tools.check import findings
from remate.schedule_tools.lint import lint
from remate.present.faults import FORMATS, render
from remate_runtime.errors import ScheduleError
from tools.fuzz.bombs import FAMILIES

def read(data):
    try:
        opened = open_text(data)
        faults = [*findings(opened, data.decode()), *lint(opened, "s.json")]
    except ScheduleError as error:
        faults = error.faults
    for form in FORMATS:
        render(form, "s.json", data, faults)

files = [path.read_bytes() for path in sorted(Path("schema/corpus").glob("*valid/*.json"))]
files += [family(2000) for name, family in FAMILIES.items() if not name.startswith("a small file")]
files += [files[0].replace(b'"name"', b'"$schema": "%s", "name"' % link, 1) for link in (b"/etc/passwd", b"http://[::1]/")]
for data in files:
    read(data)  # modules that load when they are first needed
seen = []
sys.addaudithook(lambda event, arguments: seen.append((event, arguments)))
if len(sys.argv) > 1:
    eval("1")
for data in files:
    read(data)
harmless = ("sys._getframe", "object.__getattr__", "code.__new__", "gc.", "builtins.id", "marshal.", "sys.unraisablehook")
print([event for event, _ in seen if not event.startswith(harmless)][:10])
"""


@pytest.mark.slow
def test_nothing_is_opened_started_or_evaluated() -> None:
    for argument, told in ((), "[]\n"), (("probe",), "['compile', 'exec']\n"):
        command = [sys.executable, "-c", SCRIPT, *argument]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout == told
