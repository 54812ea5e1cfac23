"""HTML from texts that nobody vouches for: everything is escaped here, and only here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..text import escape

SHARE = '<span class="hidden">Share</span>'  # head of a column of bars, for who does not see them


def text(value: object) -> str:
    """Text of the schedule. Its writing direction stays its own."""
    return f"<bdi>{escape(value)}</bdi>"


def note(value: str) -> str:
    """A remark of the schedule, which keeps its lines."""
    return "\n".join(map(text, value.split("\n")))


def code(value: object) -> str:
    """A name of the schedule, which may break after its dots."""
    return f"<code><bdi>{escape(value).replace('.', '.<wbr>')}</bdi></code>"


def attribute(value: object) -> str:
    return escape(value)


def bar(share: float, kind: str = "") -> str:
    """A bar whose length says a share of 1."""
    width = f"{max(0.0, min(share, 1.0)) * 100:.1f}%"
    return (
        f'<svg class="bar {attribute(kind)}" aria-hidden="true"><rect class="all" width="100%" height="100%"/>'
        f'<rect width="{width}" height="100%"/></svg>'
    )


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = (), ids: int = -1
) -> str:
    """A table that scrolls if it is too wide. Cells are HTML. right: columns of figures. ids: the column that lists
    many names, which may break anywhere."""

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
    """What is shown on demand."""
    return f"<details><summary>{escape(title)}</summary>\n{inside}\n</details>"
