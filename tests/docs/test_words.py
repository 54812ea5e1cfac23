"""Documentation and docstrings use the terms of the glossary; sentences of the documentation are short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.documentation.site import outside_code

from .page_blocks import ROOT, pages

# Words that the glossary replaces, or that say nothing.
_OTHER_WORDS = re.compile(
    r"\b(re-?r[u]ns?|k[e]ep-all|l[e]t go|t[o]ld|t[e]lls|fores[e]en?|by its[e]lf|what is "
    r"th[e]re|l[i]es|pl[a]nted|l[e]nt)\b",
    re.IGNORECASE,
)
_LONGEST_AVERAGE = 16.0  # words in a sentence


def prose(page: str) -> str:
    """The text of a page without code, tables, comments, headings and addresses."""
    parts: list[str] = []

    def note(text: str) -> str:
        text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
        lines = [line for line in text.splitlines() if not line.startswith(("|", "#", ":::"))]
        parts.append("\n".join(lines))
        return text

    outside_code((ROOT / page).read_text(encoding="utf-8"), note)
    whole = "\n\n".join(parts)
    whole = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", whole)
    return re.sub(r"`[^`]*`", "code", whole)


_SPECIFICATION = ("README", "errors", "lint", "threats", "instances", "fingerprint")
HAND_WRITTEN = [
    *(page for page in pages() if page != "docs/reference/cli.md"),
    *(f"schema/{name}.md" for name in _SPECIFICATION),
]


@pytest.mark.parametrize("page", HAND_WRITTEN)
def test_words(page: str) -> None:
    assert sorted(set(_OTHER_WORDS.findall(prose(page)))) == []


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node, clean=False) or ""


@pytest.mark.quick("tools")
@pytest.mark.parametrize("folder", ["remate", "runtime", "tools"])
def test_words_of_docstrings(folder: str) -> None:
    other = {
        f"{path.relative_to(ROOT)}: {word}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in docstrings(path)
        for word in _OTHER_WORDS.findall(re.sub(r"`[^`]*`", "code", text))
    }
    assert sorted(other) == []


@pytest.mark.parametrize("page", HAND_WRITTEN)
def test_sentences_are_short(page: str) -> None:
    text = re.sub(r"\n\s*(?:[-*]|\d+\.) ", "\n\n", prose(page))
    sentences = [s for s in re.split(r"(?<=[.:;?!])\s|\n\s*\n", text) if len(s.split()) > 2]
    average = sum(len(s.split()) for s in sentences) / max(len(sentences), 1)
    assert average <= _LONGEST_AVERAGE, max(sentences, key=lambda s: len(s.split()))
