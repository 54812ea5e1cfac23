"""The reference of the Python API has everything that is public."""

from __future__ import annotations

import re

import pytest

import remate
import remate_runtime

from .page_blocks import ROOT

PAGE = ROOT / "docs" / "reference" / "api.md"


@pytest.mark.parametrize("package", [remate, remate_runtime], ids=lambda package: package.__name__)
def test_every_public_name_is_on_the_page(package: object) -> None:
    shown = set(re.findall(r"^::: (\S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    names = set(vars(package)["__all__"]) - {"__version__"}
    if package is remate:
        names -= set(remate_runtime.__all__)  # the same objects
    assert {f"{vars(package)['__name__']}.{name}" for name in names} - shown == set()
