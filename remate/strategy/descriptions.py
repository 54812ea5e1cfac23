"""Descriptions of strategies: source, parts that follow the paper, and differences, from the docstring of `propose`."""

from __future__ import annotations

import inspect
import re

import msgspec

from .base import Strategy

SECTIONS = ("Source", "From the paper", "Differences")
_SECTION = re.compile(r"^([A-Z][A-Za-z ]*):\n((?:    .*\n?|\n(?=    ))+)", re.MULTILINE)


class Description(msgspec.Struct, frozen=True):
    """What a strategy takes from its source. Fields are "" if the docstring lacks the section.

    Attributes:
        source: The paper, or "No paper".
        from_paper: Parts that follow the source.
        differences: What differs, and why.
    """

    source: str
    from_paper: str
    differences: str


def describe(strategy: Strategy) -> Description:
    """Return the description of a strategy."""
    text = inspect.getdoc(strategy.propose) or ""
    sections = {name: " ".join(body.split()) for name, body in _SECTION.findall(text)}
    return Description(*(sections.get(name, "") for name in SECTIONS))
