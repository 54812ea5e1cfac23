"""A hook for MkDocs: links from a page to files of the repository outside `docs` work on the site, too.

Such a file is added to the site as `repository/PATH`, and the links of a page are rewritten. So every page has links
that work in the repository, in an editor and on the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
_TITLE = re.compile(r"^(```\w+) ([\w./-]+)$", re.MULTILINE)  # a block of code that names its file
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that the given pages link to, recursively."""
    from mkdocs.structure.files import File  # type: ignore[import-not-found]

    open_pages = [file.src_uri for file in files.documentation_pages()]
    while open_pages:
        page = open_pages.pop()
        for target in _targets(page):
            address = _address(target)
            if files.get_file_from_path(address) is None:
                if not (ROOT / target).is_file():
                    continue  # MkDocs reports the link as broken
                files.append(File.generated(config, address, abs_src_path=str(ROOT / target)))
                if target.endswith(".md"):
                    open_pages.append(address)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page to addresses on the site."""
    at = page.file.src_uri
    folder = posixpath.dirname(_path(at))

    def rewritten(match: re.Match[str]) -> str:
        target = _address(_file(posixpath.normpath(posixpath.join(folder, match[2]))))
        return f"{match[1]}{posixpath.relpath(target, posixpath.dirname(at) or '.')}{match[3]}"

    return _TITLE.sub(r'\1 title="\2"', outside_code(markdown, lambda text: LINK.sub(rewritten, text)))


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Apply a change to a page except its code blocks."""
    return "".join(part if part.startswith("```") else change(part) for part in _FENCE.split(markdown))


def _targets(page: str) -> set[str]:
    """The files of the repository to which a page of the site links."""
    path = _path(page)
    folder = posixpath.dirname(path)
    files = set[str]()

    def note(text: str) -> str:
        files.update(_file(posixpath.normpath(posixpath.join(folder, m[2]))) for m in LINK.finditer(text))
        return text

    outside_code((ROOT / path).read_text(encoding="utf-8"), note)
    return files


def _file(path: str) -> str:
    """The README of a folder; other paths unchanged."""
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def _path(address: str) -> str:
    """The path in the repository of a file of the site."""
    return address.removeprefix("repository/") if address.startswith("repository/") else f"docs/{address}"


def _address(path: str) -> str:
    """The address on the site of a file of the repository."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
