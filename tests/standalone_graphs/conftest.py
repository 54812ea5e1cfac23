"""The command, in a folder of its own."""

from __future__ import annotations

from tests.cli.conftest import remate as remate_command

__all__ = ["remate_command"]
