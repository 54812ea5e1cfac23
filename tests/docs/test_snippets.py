"""Every Python snippet and every `remate` command of the README and of the documentation runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .page_blocks import ROOT, blocks, pages, run_page, working_in


@pytest.mark.quick("README.md")
@pytest.mark.usefixtures("quick_searches")
@pytest.mark.parametrize("page", pages())
def test_snippets_run(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Slow snippets run with `--slow` only: each follows the ones before it on its page."""
    with working_in(tmp_path):
        run_page(page, tmp_path, slow=bool(request.config.getoption("--slow")))


@pytest.mark.parametrize("page", pages())
def test_python_parses(page: str) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, f"{page}:{block.line}", "exec")


EXCERPTS = {"docs/reference/schedule-file.md": "examples/gpt2.json"}


@pytest.mark.parametrize("page", EXCERPTS)
def test_excerpts_are_of_the_example(page: str) -> None:
    """Each line of a block of JSON is a line of the file. `…` marks omitted lines."""
    lines = (ROOT / EXCERPTS[page]).read_text(encoding="utf-8").splitlines()
    shown = [line for block in blocks(page) if block.language == "json" for line in block.text.splitlines()]
    for line in shown:
        parts = [part for part in line.strip().split("…") if part.strip(" ,")]
        assert any(_in_order(parts, whole) for whole in lines), line


def _in_order(parts: list[str], line: str) -> bool:
    at = 0
    for part in parts:
        at = line.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_readme_names_the_two_commands_on_lines_of_their_own() -> None:
    texts = [block.text for block in blocks("README.md")]
    assert "tools/demo\n" in texts
    assert "tools/test\n" in texts
