"""A page taken apart by a real HTML parser."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

_VOID = {"meta", "link", "br", "wbr", "hr", "img", "input", "rect", "line", "circle", "path"}
_RAW = {"script", "style"}


class Document(HTMLParser):
    """elements: (name, attributes). texts: of everything but scripts and styles. open: not closed, or closed
    wrongly."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in _RAW:
            self.scripts.append(data)
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def data(self) -> dict[str, Any]:
        return next(json.loads(script) for script in self.scripts if script.startswith("{"))
