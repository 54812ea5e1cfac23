"""Finds the JSON Schema of the schedule format: in the installed package, or in the source tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAME = "schedule-1.schema.json"
SCHEMA_URL = NAME  # the `$schema` of a schedule: relative, so that editors use a copy beside the file


def schema_path() -> Path:
    """The file of the schema. An installed wheel has it in the package `remate`, an editable install in `schema/`.

    Raises:
        FileNotFoundError: The installation is damaged.
    """
    here = Path(__file__).resolve().parents[1]
    for path in (here / NAME, here.parent / "schema" / NAME):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{NAME} is missing from the installation of remate; install it again")


def load_schema() -> dict[str, Any]:
    return json.loads(schema_path().read_text(encoding="utf-8"))
