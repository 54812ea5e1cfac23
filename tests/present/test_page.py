"""The page: complete in itself, safe with any text, and its figures are the simulator's."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from itertools import accumulate
from pathlib import Path

import msgspec
from msgspec.structs import replace

from remate.present.report import frontier, page
from remate.schedule_tools.analysis import Analysis, analyse
from remate.step_measurement.memory_trace import memory_trace
from remate_runtime.format.writer import encode, save
from remate_runtime.link.events import BackwardStart, RecomputeRun, Run, Update
from remate_runtime.support.plain_text import plain as safe

from .documents import Document

HOSTILE = "</script></style><img src=x onerror=alert(1)>\"'&${title}<!--\u202e"


def hostile(opened: Analysis) -> Analysis:
    """The same schedule with an attack in every free text."""
    schedule = opened.schedule
    blocks = {name: replace(block, note=HOSTILE) for name, block in schedule.blocks.items()}
    model = replace(schedule.model, name=HOSTILE, torch=HOSTILE)
    solve = replace(schedule.solve, strategy=HOSTILE, solver=HOSTILE, cost=HOSTILE)
    return analyse(replace(schedule, name=HOSTILE, note=HOSTILE, model=model, solve=solve, blocks=blocks))


def test_elements_are_closed_and_ids_differ(mlp: Analysis) -> None:
    document = Document(page(mlp))
    assert (document.open, document.wrong) == ([], [])
    ids = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    labels = {a["aria-labelledby"] for _, a in document.elements if "aria-labelledby" in a}
    assert labels <= set(ids)


def test_nothing_is_loaded(mlp: Analysis) -> None:
    text = page(mlp)
    document = Document(text)
    for tag, attributes in document.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "a")
        assert not {"src", "href", "action", "style"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    outside = set(re.findall(r"https?://[^\s\"'<>)]+", text))
    assert outside == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "url(" not in text
    assert "@import" not in text
    assert "innerHTML" not in text


def test_policy_allows_the_page_and_nothing_else(mlp: Analysis) -> None:
    text = page(mlp)
    document = Document(text)
    (policy,) = (m["content"] or "" for m in document.named("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for kind, tag in (("style", "<style>"), ("script", "<script>")):
        content = text.split(tag, 1)[1].split(f"</{kind}>", 1)[0]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_hostile_texts_stay_texts(mlp: Analysis) -> None:
    plain, attacked = Document(page(mlp)), Document(page(hostile(mlp)))
    assert [tag for tag, _ in attacked.elements if tag in ("script", "style", "img")] == ["style", "script", "script"]
    assert (attacked.open, attacked.wrong) == ([], [])
    assert attacked.text.count(safe(HOSTILE)) > 6
    assert set(attacked.data()) == set(plain.data())


def test_data_in_a_script_cannot_end_it() -> None:
    from remate.present.report.payload import script_text

    text = script_text({"a": HOSTILE + "\u2028"})
    assert not set("<>&\u2028") & set(text)


def test_figures_for_the_script_are_the_simulators(mlp: Analysis) -> None:
    data = Document(page(mlp)).data()
    steps, timeline = data["steps"], mlp.timeline
    assert max(steps["during"]) == timeline.peak == steps["during"][data["peak"]]
    assert steps["op"][data["backward_start"]] == -1
    assert len(steps["op"]) == sum(
        isinstance(event, Run | RecomputeRun | BackwardStart | Update) for event in mlp.linked.events
    )
    held = data["held"]
    first = list(accumulate(held["first"]))
    workspace = [0 if op < 0 else data["ops"]["workspace"][op] for op in steps["op"]]
    for at, during in enumerate(steps["during"]):
        inside = [i for i, start in enumerate(first) if start <= at <= start + held["more"][i]]
        assert sum(held["bytes"][i] for i in inside) + workspace[at] == during


def test_names_for_the_script(mlp: Analysis) -> None:
    data = Document(page(mlp)).data()
    by_name = {
        (f"{data['places'][place]}." if place >= 0 else "") + data["locals"][local]
        for place, local in zip(data["ops"]["place"], data["ops"]["local"], strict=True)
    }
    assert by_name == {op.id for op in mlp.graph.operations if not op.view}


def test_the_same_schedule_makes_the_same_page(mlp: Analysis) -> None:
    assert page(mlp) == page(analyse(mlp.schedule))


def test_measured_curve(mlp: Analysis) -> None:
    trace = memory_trace(mlp.schedule, 50, [0, 10, 60, 100], [0, 700, mlp.timeline.peak * 2, 0])
    document = Document(page(mlp, trace))
    assert "Measured peak" in document.text
    assert max(document.data()["measured"][1]) == mlp.timeline.peak * 2
    assert [a for a in document.named("path") if a.get("class") == "measured"]
    assert document.data()["top"] == max(mlp.timeline.peak * 2, mlp.baseline.peak)


def test_frontier(mlp: Analysis, tmp_path: Path) -> None:
    save(mlp.schedule, tmp_path / "here.json")
    looser = replace(mlp.schedule, solve=replace(mlp.schedule.solve, budget=mlp.schedule.solve.budget + 1000))
    save(looser, tmp_path / "looser <b>.json")
    slower = msgspec.json.decode(encode(mlp.schedule))
    for costs in slower["costs"].values():
        costs.update({local: ns + 1000 for local, ns in costs.items()})
    (tmp_path / "other-costs.json").write_text(json.dumps(slower))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "notes.txt").write_text("not looked at")
    schedules = frontier(mlp, str(tmp_path / "here.json"), str(tmp_path))
    assert [(p.file, p.here) for p in schedules.points] == [("here.json", True), ("looser <b>.json", False)]
    assert [name for name, _ in schedules.skipped] == ["broken.json", "other-costs.json"]
    document = Document(page(mlp, None, schedules))
    assert (document.open, document.wrong) == ([], [])
    assert "looser <b>.json" in document.text
    labels = [label for label in page(mlp, None, schedules).split("</text>") if label.endswith(">69%")]
    assert len(labels) == 1  # two points in one place have one label
    assert "named" not in document.text
    (tmp_path / "named").mkdir()
    save(mlp.schedule, tmp_path / "named" / "here.json")
    again = frontier(mlp, str(tmp_path / "named" / "here.json"), str(tmp_path))
    assert [(p.file, p.here) for p in again.points][:2] == [("here.json", False), ("named/here.json", True)]
    assert page(mlp, None, again).count(">69%</text>") == 1  # points in one place have one label


def test_columns_and_buttons_have_names_for_who_does_not_see_them(mlp: Analysis) -> None:
    shown = page(mlp)
    assert '<th scope="col"></th>' not in shown
    assert (
        shown.count('<span class="hidden">Share</span>') == 4
    )  # kept, at the peak, recomputations, and where the script writes
    for label, button in re.findall(r'aria-label="([^"]*)">([A-Za-z]+)</button>', shown):
        assert label.startswith(button)


def test_step_without_operations(mlp: Analysis) -> None:
    """Nothing to draw is drawn, without a fault."""
    schedule = mlp.schedule
    model = replace(schedule.model, outputs={"literal": None}, gradients={})
    empty = analyse(replace(schedule, program=(), statements=(), blocks={}, costs={}, model=model))
    document = Document(page(empty))
    assert (document.open, document.wrong) == ([], [])
