"""Grammars: text files with the statements and expressions that generated models are made of.

A section has one alternative per line. `<name>` in it stands for a drawn alternative of the section `name`, or for
what the caller gives under that name. `[int, 45% size]` draws from the section `size` in that share of the draws, and
always where an `<int>` is inside two others. A backslash and `n` end a line of a statement. Lines that start with `# ` are comments.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_FILES = Path(__file__).with_name("grammar")
_HEADER = re.compile(r"\[(?P<name>[a-z ]+)(?:, (?P<percent>\d+)% (?P<shorter>[a-z ]+))?\]")
_SLOT = re.compile(r"<([a-z][a-z ]*)>")
_DEEP = 2

Given = Mapping[str, str | Sequence[str]]


@dataclass
class Section:
    """Alternatives, and the section to draw from in a share of the draws."""

    lines: list[str] = field(default_factory=list)
    share: float = 0.0
    shorter: str = ""


class Grammar:
    """The sections of one file."""

    def __init__(self, text: str) -> None:
        self.sections: dict[str, Section] = {}
        section = Section()
        for line in text.splitlines():
            if header := _HEADER.fullmatch(line):
                section = Section([], int(header["percent"] or 0) / 100, header["shorter"] or "")
                self.sections[header["name"]] = section
            elif line and not line.startswith("# "):
                section.lines.append(line.replace("\\n", "\n"))

    def draw(self, name: str, dice: random.Random, given: Given | None = None) -> str:
        """An alternative of a section, with everything in it drawn.

        Args:
            name: The section.
            dice: What decides.
            given: Text for a name; of a list, each place draws one.
        """
        return self._drawn(name, dice, given or {}, {})

    def _drawn(self, name: str, dice: random.Random, given: Given, depth: Mapping[str, int]) -> str:
        if name in given:
            text = given[name]
            return text if isinstance(text, str) else dice.choice(text)
        section = self.sections[name]
        if section.shorter and (depth.get(name, 0) >= _DEEP or dice.random() < section.share):
            return self._drawn(section.shorter, dice, given, depth)
        deeper = {**depth, name: depth.get(name, 0) + 1}
        return _SLOT.sub(lambda slot: self._drawn(slot[1], dice, given, deeper), dice.choice(section.lines))


@cache
def grammar(name: str) -> Grammar:
    """The grammar of a file of the folder `grammar`."""
    return Grammar((_FILES / f"{name}.txt").read_text("utf-8"))
