"""Links of the documentation lead somewhere: to a file of the repository, and to a heading of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.documentation.site import outside_code

from .page_blocks import ROOT, pages

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def links(path: Path) -> list[str]:
    results: list[str] = []

    def note(text: str) -> str:
        results.extend(_LINK.findall(text))
        return text

    outside_code(path.read_text(encoding="utf-8"), note)
    return results


def anchors(path: Path) -> set[str]:
    """What the headings of a page are called in links, on GitHub and on the site."""
    headings: list[str] = []

    def note(text: str) -> str:
        headings.extend(_HEADING.findall(text))
        return text

    outside_code(path.read_text(encoding="utf-8"), note)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


OTHERS = ("schema/README.md", "schema/errors.md", "schema/lint.md", "schema/threats.md", "schema/instances.md")


@pytest.mark.parametrize("page", [*pages(), *OTHERS, "examples/README.md", "runtime/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for link in links(path):
        if link.startswith(("https://", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{page}: {link}"
        assert file.is_relative_to(ROOT), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(file), f"{page}: {link}: no such heading"


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}


_PATH = re.compile(r"`((?:\w[\w-]*|\.ci)/[\w./-]*\w(?:\.\w+)?)`")
WITH_PATHS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md")


@pytest.mark.parametrize("page", WITH_PATHS)
def test_named_files_exist(page: str) -> None:
    """Paths from the root of the repository that a page names as code."""
    named = _PATH.findall((ROOT / page).read_text(encoding="utf-8"))
    inside = [path for path in named if path.split("/")[0] in FOLDERS and " " not in path]
    assert [path for path in inside if not (ROOT / path).exists()] == []


FOLDERS = {"remate", "runtime", "schema", "tools", "tests", "examples", "docs", ".ci"}
