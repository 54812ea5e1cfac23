"""Makes untrusted texts safe to print: names and notes of a file, and texts of the live model.

A terminal obeys control characters, displays reordered text where the direction changes, and hides characters of zero
width. The runner of a GitHub workflow obeys lines that begin with `::` and text after `##[`. Everything that is
printed, or written into a page, a drawing or a trace, passes through here.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """Return one line in which invisible characters, line breaks included, are escaped as in Python, `\\x1b`."""
    shown = text if text.isprintable() else "".join(map(_visible, text))
    return _harmless(shown)


def plain_lines(text: str) -> str:
    """Return a text of several lines in which other invisible characters are escaped."""
    return "\n".join(map(plain, text.split("\n")))


def plain_json(text: str) -> str:
    """Return JSON in ASCII without commands for the runner of a workflow. Its value is the same."""
    return text.replace("##[", "#\\u0023[")


def _visible(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii")


def _harmless(line: str) -> str:
    """Return a line that is no command of a workflow."""
    if "##[" in line:
        line = line.replace("##[", "#\\x23[")
    if line.lstrip().startswith("::"):
        line = line.replace("::", "\\x3a:", 1)
    return line
