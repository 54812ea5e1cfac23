"""`remate edit` changes the lines that a person would change."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .changes import change

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]

CASES = {
    "keep": ["--keep", "layers.2.addmm"],
    "baseline": ["--keep", "layers.2", "--all"],
    "recompute": ["--recompute", "layers.4.addmm", "--before", "layers.4.grad.gelu_backward"],
    "recompute-new-plan": ["--recompute", "layers.4.gelu", "--before", "layers.4.grad.mm_weight"],
    "recompute-shared-plan": ["--recompute", "layers.2.gelu", "--before", "layers.2.grad.gelu_backward"],
    "recompute-across": ["--recompute", "layers.4", "--recompute", "layers.3.gelu", "--before", "layers.4"],
    "page": ["--page", "layers.1.gelu", "--page", "layers.1.addmm"],
    "page-points": ["--page", "layers.1.gelu", "--gone", "layers.4.gelu", "--back", "layers.3"],
    "plan": ["--plan", "layers.5=recompute", "--plan", "layers.0=baseline"],
}


@pytest.mark.parametrize("case", CASES)
def test_edits(remate: Remate, golden: Golden, case: str) -> None:
    before = Path("mlp.json").read_text()
    outcome = remate("edit", "mlp.json", *CASES[case])
    after = Path("mlp.json").read_text()
    changed = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=0)
    golden(f"edit-{case}.txt", str(outcome) + "\n".join(changed) + "\n")
    assert outcome.status == 0
    checked = remate("check", "mlp.json")
    assert "R081" not in checked.err
    assert remate("fmt", "--check", "mlp.json").status == 0


REFUSED = {
    "nothing": [],
    "no-before": ["--recompute", "layers.4.addmm"],
    "no-recompute": ["--before", "layers.4.grad.t", "--keep", "layers.4.addmm"],
    "no-plan-name": ["--plan", "layers.4"],
    "unknown-plan": ["--plan", "layers.4=rerunn"],
    "unknown-instance": ["--plan", "layer.4=recompute"],
    "instance-of-an-operation": ["--plan", "layers.4.addmm=recompute"],
    "unknown-id": ["--keep", "layers.4.adddmm"],
    "kept-already": ["--keep", "layers.4.addmm"],
    "recomputes-already": ["--recompute", "layers.2.addmm", "--before", "layers.2.grad.gelu_backward"],
    "view": ["--recompute", "layers.4.t", "--before", "layers.4.grad.t"],
    "backward": ["--recompute", "layers.4.grad.mm_x", "--before", "layers.4.grad.t"],
    "value-as-point": ["--recompute", "layers.4.addmm", "--before", "layers.4.weight"],
    "too-early": ["--recompute", "layers.4.gelu", "--before", "layers.3.gelu"],
}


def test_refusals(remate: Remate, golden: Golden) -> None:
    before = Path("mlp.json").read_text()
    told = [f"{case}\n{remate('edit', 'mlp.json', *argv)}" for case, argv in REFUSED.items()]
    golden("edit-refused.txt", "\n".join(told))
    assert Path("mlp.json").read_text() == before
    assert not any("status 0" in text for text in told)


def test_dry_run_and_output(remate: Remate) -> None:
    before = Path("mlp.json").read_text()
    told = remate("edit", "mlp.json", *CASES["keep"], "--dry-run").out
    assert remate("edit", "mlp.json", *CASES["keep"], "-o", "new.json").out == told + "wrote new.json\n"
    assert Path("mlp.json").read_text() == before
    assert remate("diff", "mlp.json", "new.json").status == 1


def test_notes_stay(remate: Remate) -> None:
    change("mlp.json", ('"before": "grad.gelu_backward"}', '"before": "grad.gelu_backward", "note": "cheap"}'))
    remate("edit", "mlp.json", "--recompute", "layers.2.gelu", "--before", "layers.2.grad.gelu_backward", "--all")
    text = Path("mlp.json").read_text()
    assert '{"recompute": ["addmm", "gelu"], "before": "grad.gelu_backward", "note": "cheap"}' in text
    assert '"note": "six layers' in text


def test_a_shared_line_needs_all(remate: Remate) -> None:
    """Instances inside a block that is used several times share one line."""
    nested = Path(__file__).parents[2] / "schema" / "corpus" / "valid" / "nested.json"
    Path("nested.json").write_text(nested.read_text())
    from remate.schedule_tools.analysis import open_schedule

    opened = open_schedule("nested.json")
    lines: dict[str, list[str]] = {}
    for place in opened.expanded.places:
        if place.leaf:
            lines.setdefault(place.where, []).append(place.id)
    shared = next(ids for ids in lines.values() if len(ids) > 1)
    place = next(p for p in opened.expanded.places if p.id == shared[0])
    plan = next(p for p in ("baseline", *place.block.plans) if p != place.instance.plan)
    refused = remate("edit", "nested.json", "--plan", f"{shared[0]}={plan}")
    assert refused.status == 1
    assert "--all edits all of them" in refused.err
    assert remate("edit", "nested.json", "--plan", f"{shared[0]}={plan}", "--all").status == 0
