"""Edits copies of schedule files for tests."""

from __future__ import annotations

from pathlib import Path


def change(name: str, *changes: tuple[str, str], to: str = "") -> str:
    """Replace the first occurrence of each text in file `name`; write the result to `to`, or back."""
    text = Path(name).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    Path(to or name).write_text(text, encoding="utf-8")
    return to or name
