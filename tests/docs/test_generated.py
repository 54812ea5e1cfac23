"""What the documentation generates from code and results is current: `tools/docs --write` writes it again."""

from __future__ import annotations

from tools.documentation.generated import stale
from tools.documentation.results import ROOT


def test_generated_parts_are_current() -> None:
    assert [path.relative_to(ROOT).as_posix() for path in stale()] == [], "run: tools/docs --write"
