"""What a stranger's file goes through: reader, expansion, linker, simulator, checks, operators and constants.

Each input is refused with located faults, or gives a schedule that writes and reads back the same. Anything else is a
bug: another exception, a fault without a place or of an unknown code. Neither a model nor an operator runs.
"""

from __future__ import annotations

import torch

from remate.present.faults import FAULTS, FORMATS, FaultReport, render
from remate.schedule_tools.analysis import Analysis, open_text
from remate.schedule_tools.check import findings
from remate.schedule_tools.lint import CODES as LINT
from remate.schedule_tools.lint import lint
from remate_runtime.errors import ScheduleError
from remate_runtime.format import CODES, decode, encode, locate
from remate_runtime.operator_calls import constant, operators

from .oracle import within_its_share

_CPU = torch.device("cpu")
_WARNINGS = FaultReport("warning", LINT, "warnings")


def consume_within_its_share(data: bytes) -> None:
    """Run `consume`, which must not take more time or memory than the bytes allow."""
    within_its_share(data, lambda: consume(data))


def consume(data: bytes) -> bool:
    """Process a file. Return whether it is a legal schedule. Any exception indicates a bug."""
    try:
        opened = open_text(data)
    except ScheduleError as error:
        _refused(data, error)
        return False
    text = data.decode()
    _shown(data, findings(opened, text), FAULTS)
    _shown(data, locate(text, lint(opened, "s.json")), _WARNINGS)
    written = encode(opened.schedule)
    assert encode(decode(written)) == written, "what is written does not read back the same"
    return _runnable(opened, data)


def _runnable(opened: Analysis, data: bytes) -> bool:
    try:
        operators(opened.graph, opened.expanded.where)
    except ScheduleError as error:
        _shown(data, locate(data.decode(), error.faults), FAULTS)
        return False
    for value in opened.graph.values:
        if value.kind == "constant":
            tensor = constant(value.type, value.data or (), _CPU)
            assert tuple(tensor.shape) == value.type.shape, "a constant of another shape"
    return True


def _refused(data: bytes, error: ScheduleError) -> None:
    for fault in error.faults:
        assert fault.code in CODES, f"unknown code {fault.code}"
        assert fault.line >= 1 or fault.code == "R070", f"a fault without a place: {fault}"
    _shown(data, error.faults, FAULTS)


def _shown(data: bytes, faults: list[ScheduleError] | tuple[ScheduleError, ...], kind: FaultReport) -> None:
    for form in FORMATS:
        shown = render(form, "s.json", data, faults, kind)
        assert form != "text" or all(line.isprintable() for line in shown.split("\n")), "control characters"
