"""Lists and writes the generated parts of the documentation: figures, command reference, picture of the README."""

from __future__ import annotations

from pathlib import Path

from remate.present.plot import memory_plot
from remate.schedule_tools.analysis import open_text

from .cli_reference import page
from .figures import with_figures
from .results import ROOT

PICTURE = "docs/images/memory.svg"
PLANNED = "examples/gpt2.json"


def pages() -> list[Path]:
    """Every page for readers: the top level of the repository, and `docs`."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def generated() -> dict[Path, str]:
    """The current content of all files that are generated or contain generated parts."""
    fresh = {path: with_figures(path.read_text(encoding="utf-8")) for path in pages()}
    fresh[ROOT / "docs" / "reference" / "cli.md"] = page()
    fresh[ROOT / PICTURE] = memory_plot(open_text((ROOT / PLANNED).read_bytes()))
    return fresh


def stale() -> list[Path]:
    """The files whose content is out of date."""
    return [path for path, text in generated().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def write() -> None:
    """Write every file whose content is out of date."""
    for path, text in generated().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
