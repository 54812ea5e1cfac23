"""Where the JSON Schema of the schedule format is: inside the installed package, or in the source tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAME = "schedule-1.schema.json"
SCHEMA_URL = NAME  # what a schedule states as `$schema`: relative, so that an editor finds a copy beside the file


def schema_path() -> Path:
    """The schema's file. An installed wheel carries it in the package `remate`; an editable install has it in
    `schema/`.

    Raises FileNotFoundError if the installation is damaged.
    """
    here = Path(__file__).resolve().parents[1]
    for path in (here / NAME, here.parent / "schema" / NAME):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{NAME} is missing from the installation of remate; install it again")


def load_schema() -> dict[str, Any]:
    return json.loads(schema_path().read_text(encoding="utf-8"))
