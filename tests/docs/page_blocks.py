"""The code in the pages of the documentation, and how to run it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
# What blocks of shell may name beside `remate`: it is not run.
NOT_RUN = {
    "pip",
    "git",
    "torchrun",
    "python",
    "source",
    "cp",
    "tools/docs",
    "tools/test",
    "tools/demo",
    "tools/cuda",
    "tools/cuda-build",
}
NOT_RUN |= {"python3", ".venv/bin/python", "tools/setup-env"}
_BLOCK = re.compile(
    r"(?:^<!-- (?P<words>test: [^>]*|setup\n(?:(?!-->).)*)-->\n)?^```(?P<language>\w*)(?: "
    r"title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<text>.*?)^```$|^<!-- setup\n(?P<setup>(?:(?!-->).)*)-->$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of code of a page.

    Attributes:
        language: `python`, `sh`, or something that is not run.
        text: The code.
        line: Where it begins on the page, from 1.
        title: The file that it is written to, instead of being run.
        slow: It takes more than about ten seconds.
        status: The exit status that its commands have.
        skipped: Why it is not run; empty if it is.
    """

    language: str
    text: str
    line: int
    title: str = ""
    slow: bool = False
    status: int = 0
    skipped: str = ""


def pages() -> list[str]:
    """The pages by their paths from the root of the repository."""
    return [*PAGES, *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page, hidden ones (`<!-- setup … -->`) among them, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        words = match["words"] or ""
        hidden = match["setup"] or (words.removeprefix("setup\n") if words.startswith("setup") else "")
        if hidden:
            yield Block("python", hidden, line + 1)
        if match["language"] is not None:
            line = text.count("\n", 0, match.start("text")) + 1
            status = re.search(r"status (\d+)", words)
            yield Block(
                match["language"],
                match["text"],
                line,
                match["title"] or "",
                "slow" in words.split(),
                int(status[1]) if status else 0,
                words.partition("skip: ")[2].strip(),
            )


def run_page(page: str, folder: Path, *, slow: bool) -> None:
    """Run the blocks of a page one after the other in a folder. Slow ones only if requested."""
    module = ModuleType("page")
    sys.modules["page"] = module
    try:
        for block in blocks(page):
            if block.skipped or (block.slow and not slow):
                continue
            if block.title:
                path = folder / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                _run_python(page, block, module, folder)
            elif block.language == "sh":
                _run_shell(page, block)
    finally:
        del sys.modules["page"]


def _run_python(page: str, block: Block, module: ModuleType, folder: Path) -> None:
    """The code runs as a file of its own, where `inspect` finds its source."""
    path = folder / f"page_line_{block.line}.py"
    path.write_text(block.text, encoding="utf-8")
    try:
        exec(compile(block.text, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise AssertionError(f"{page}:{block.line}: {type(error).__name__}: {error}") from error


_VARIABLE = re.compile(r"[A-Z_]+=")  # of the environment, in front of a command


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a block of shell, as words; comments and continued lines as a shell reads them."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and _VARIABLE.match(words[0]):
            del words[0]
        if words:
            yield words


def _run_shell(page: str, block: Block) -> None:
    from remate.cli import main

    for words in commands(block):
        name, *rest = words
        if name in NOT_RUN:
            continue
        assert name == "remate", f"{page}:{block.line}: it is not known whether `{name}` can be run"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            status = main(rest)
        assert status == block.status, (
            f"{page}:{block.line}: exit status {status} of {shlex.join(words)}\n{printed.getvalue()}"
        )


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """The current folder, and the first that imports look in. What was imported from it is forgotten."""
    before, known = Path.cwd(), set(sys.modules)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
        os.chdir(before)
