"""Compares the published JSON Schema with a file that the reader accepts. A difference means that one of the two is
wrong.

Editors and other tools use the schema, so `check` validates against it, too. The reader refuses every file that the
schema refuses, with better messages. The corpus and the tests of the format check that for each file.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from remate_runtime.errors import ScheduleError
from remate_runtime.format import escape, locate

from .schema_file import load_schema

MOST_BYTES = 1 << 20  # bytes of a file; the schema needs about two seconds for that many
_SHOWN = 20  # faults
_CODES = {
    "additionalProperties": "R010",
    "required": "R011",
    "type": "R012",
    "pattern": "R014",
    "propertyNames": "R014",
}


def schema_faults(text: str) -> list[ScheduleError]:
    """Faults by the schema, with their places in `text`. Empty for a text above MOST_BYTES."""
    if len(text) > MOST_BYTES:
        return []
    faults: list[ScheduleError] = []
    for error in _validator().iter_errors(json.loads(text)):
        where = "".join(f"/{escape(str(part))}" for part in error.absolute_path)
        message = f"the published JSON Schema refuses it: {error.message[:200]}"
        hint = "correct the file; if it is right, please report this as a bug of remate, with the file"
        faults.append(ScheduleError(_CODES.get(str(error.validator), "R013"), message, where, hint))
        if len(faults) == _SHOWN:
            break
    return locate(text, faults)


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(load_schema())
