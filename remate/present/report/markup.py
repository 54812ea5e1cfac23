"""HTML from untrusted texts. Everything is escaped in this module, and only here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..text import escape

SHARE = '<span class="hidden">Share</span>'  # header of a column of bars, for screen readers


def text(value: object) -> str:
    """Return text of the schedule, with an isolated writing direction."""
    return f"<bdi>{escape(value)}</bdi>"


def note(value: str) -> str:
    """Return a note of the schedule, with its line breaks."""
    return "\n".join(map(text, value.split("\n")))


def code(value: object) -> str:
    """Return a name of the schedule that can break after its dots."""
    return f"<code><bdi>{escape(value).replace('.', '.<wbr>')}</bdi></code>"


def attribute(value: object) -> str:
    """Return the value of a quoted attribute."""
    return escape(value)


def bar(share: float, kind: str = "") -> str:
    """Return a bar whose length is a share of 1."""
    width = f"{max(0.0, min(share, 1.0)) * 100:.1f}%"
    return (
        f'<svg class="bar {attribute(kind)}" aria-hidden="true"><rect class="all" width="100%" height="100%"/>'
        f'<rect width="{width}" height="100%"/></svg>'
    )


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = (), ids: int = -1
) -> str:
    """Return a table that scrolls if it is too wide.

    Args:
        caption: The caption.
        head: Headers of the columns, as HTML.
        rows: Rows of cells, as HTML.
        right: Right-aligned columns.
        ids: The column with lists of names, which can break anywhere.
    """

    def cells(row: Sequence[str], tag: str) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        kinds = [" class=n" if at in right else " class=ids" if at == ids else "" for at in range(len(row))]
        return "".join(f"<{tag}{scope}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    body = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{attribute(caption)}"><table>\n'
        f"<caption><span>{escape(caption)}</span></caption>\n<thead><tr>{cells(head, 'th')}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def folded(title: str, inside: str) -> str:
    """Return content that opens on demand."""
    return f"<details><summary>{escape(title)}</summary>\n{inside}\n</details>"
