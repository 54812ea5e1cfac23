"""Texts that nobody vouches for, made safe to print: names and notes of a file, and what the live model says of itself.

A terminal obeys control characters, shows other text than is there where the direction changes, and hides what has no
width; the runner of a GitHub workflow obeys lines that begin with `::` and text after `##[`. Whatever is printed, or
written into a page, a drawing or a trace, has passed through here.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """One line that shows what is there: what cannot be seen, line breaks included, is spelt as in Python, `\\x1b`."""
    shown = text if text.isprintable() else "".join(map(_visible, text))
    return _harmless(shown)


def plain_lines(text: str) -> str:
    """The same for a text of several lines: their breaks stay."""
    return "\n".join(map(plain, text.split("\n")))


def plain_json(text: str) -> str:
    """JSON in ASCII, in which no command for the runner of a workflow is left. Its value stays the same."""
    return text.replace("##[", "#\\u0023[")


def _visible(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii")


def _harmless(line: str) -> str:
    """A line that is no command of a workflow."""
    if "##[" in line:
        line = line.replace("##[", "#\\x23[")
    if line.lstrip().startswith("::"):
        line = line.replace("::", "\\x3a:", 1)
    return line
