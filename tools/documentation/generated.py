"""What in the documentation is generated: tables of figures, the reference of commands, the picture of the README."""

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
    """Every page that people read: the top level of the repository, and `docs`."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def generated() -> dict[Path, str]:
    """The files that are generated, or contain something that is, as they should be."""
    fresh = {path: with_figures(path.read_text(encoding="utf-8")) for path in pages()}
    fresh[ROOT / "docs" / "reference" / "cli.md"] = page()
    fresh[ROOT / PICTURE] = memory_plot(open_text((ROOT / PLANNED).read_bytes()))
    return fresh


def stale() -> list[Path]:
    """The files that are not as they should be."""
    return [path for path, text in generated().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def write() -> None:
    """Write every file that is not as it should be."""
    for path, text in generated().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
