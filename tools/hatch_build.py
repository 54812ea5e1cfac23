"""Puts files of `schema/` into the wheel, each beside the code that reads it; `pyproject.toml` lists them.

An editable install reads them in place, and its own `force-include` would put folders named as the packages
beside it in site-packages.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SchemaFiles(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            build_data["force_include"].update(self.config["files"])
