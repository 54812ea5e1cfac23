"""What the published JSON Schema says of a file that the reader accepts: nothing, or one of the two is wrong.

Editors and other people's tools go by the schema, so `check` holds a file to it, too. The reader refuses all that the
schema refuses (the corpus and the tests of the format say so file by file), and is the one that describes it, with
better words.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from remate_runtime.errors import ScheduleError
from remate_runtime.format import escape, locate

from .schema_file import load_schema

MOST_BYTES = 1 << 20  # of a file: the schema takes about two seconds for so much
_SHOWN = 20  # faults
_CODES = {
    "additionalProperties": "R010",
    "required": "R011",
    "type": "R012",
    "pattern": "R014",
    "propertyNames": "R014",
}


def schema_faults(text: str) -> list[ScheduleError]:
    """Faults by the schema, with their places in `text`, which the reader accepts; none for more than MOST_BYTES."""
    if len(text) > MOST_BYTES:
        return []
    faults = []
    for error in _validator().iter_errors(json.loads(text)):
        where = "".join(f"/{escape(str(part))}" for part in error.absolute_path)
        message = f"the published JSON Schema refuses it: {error.message[:200]}"
        hint = "mend the file; if it is right, this is a defect of remate: please report it with the file"
        faults.append(ScheduleError(_CODES.get(str(error.validator), "R013"), message, where, hint))
        if len(faults) == _SHOWN:
            break
    return locate(text, faults)


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(load_schema())
