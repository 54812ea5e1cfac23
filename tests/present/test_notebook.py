"""`repr` of a schedule, and what a notebook shows of it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from remate.schedule_tools.analysis import Analysis
from remate_runtime.format import Dimension
from remate_runtime.support.quantities import size

from .documents import Document
from .test_page import hostile


def test_repr_is_one_screen(mlp: Analysis) -> None:
    lines = repr(mlp.schedule).split("\n")
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 120
    assert size(mlp.schedule.solve.peak) in lines[2]
    dims = {f"d{i}": Dimension(min=2, max=9, planned=4) for i in range(50)}
    many = replace(mlp.schedule, name="n" * 10_000, model=replace(mlp.schedule.model, dims=dims))
    assert len(repr(many)) < 1_500


def test_repr_shows_what_terminals_obey(mlp: Analysis) -> None:
    assert "\u202e" not in repr(hostile(mlp).schedule)


def test_html_has_the_figures_and_the_curve(mlp: Analysis) -> None:
    document = Document(mlp.schedule._repr_html_())
    assert (document.open, document.wrong) == ([], [])
    assert f"peak {size(mlp.timeline.peak)}" in document.text
    drawn = [attributes for attributes in document.named("path") if (attributes.get("d") or "").endswith("Z")]
    assert len(drawn) == 2
    for attributes in drawn:
        assert len(attributes["d"] or "") > 100


def test_html_of_hostile_texts(mlp: Analysis) -> None:
    document = Document(hostile(mlp).schedule._repr_html_())
    assert not document.named("script")
    assert not document.named("img")
    assert (document.open, document.wrong) == ([], [])


def test_html_of_a_schedule_that_cannot_be_linked(mlp: Analysis) -> None:
    (block, *_) = mlp.schedule.program
    broken = replace(mlp.schedule, program=(replace(block, block="nowhere"), *mlp.schedule.program[1:]))
    assert "<svg" not in broken._repr_html_()
    assert "<table" in broken._repr_html_()


def test_everything_is_still_there_for_programs(mlp: Analysis) -> None:
    assert len(msgspec.to_builtins(mlp.schedule)["blocks"]) == len(mlp.schedule.blocks)
