"""`remate diff`: decisions, graphs and records that differ, as text, as JSON, and called by git."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .changes import change

Remate = Callable[..., Any]
Golden = Callable[[str, str], None]


def test_equal(remate: Remate) -> None:
    change("mlp.json", ("  ", " \t"), to="spaced.json")
    assert remate("diff", "mlp.json", "spaced.json") == (0, "the schedules are equal\n", "")


def test_decisions(remate: Remate, golden: Golden) -> None:
    change(
        "mlp.json",
        ('"%layers.2.grad.mm_x"}, "plan": "recompute"', '"%layers.2.grad.mm_x"}'),
        ('"%layers.3.grad.mm_x"}, "plan": "recompute"', '"%layers.3.grad.mm_x"}, "plan": "later"'),
        ('"%loss.grad.div"}', '"%loss.grad.div"}, "plan": "later"'),
        ('"plans": {', '"plans": {"later": [{"recompute": ["addmm", "gelu"], "before": "grad.t"}],'),
        (
            '\n  ],\n  "costs"',
            '\n  ],\n  "statements": [{"recompute": ["layers.0.gelu"], "before": "layers.1"}],\n  "costs"',
        ),
        to="new.json",
    )
    golden("diff.txt", str(remate("diff", "mlp.json", "new.json")))
    report = json.loads(remate("diff", "mlp.json", "new.json", "--format", "json").out)
    assert [(d["instances"], d["plan"]) for d in report["decisions"]] == [
        (["layers.0"], None),
        (["layers.1"], ["recompute", "baseline"]),
        (["layers.2"], ["recompute", "later"]),
        (["layers.5"], ["baseline", "later"]),
    ]
    assert report["effect"]["recomputes"] == [4, 7]


def test_graph_model_and_record(remate: Remate, golden: Golden) -> None:
    change(
        "mlp.json",
        ('"torch": "2.13.0"', '"torch": "2.14.0"'),
        ('"id": "gelu", "op": "aten.gelu", "args": ["%addmm"]', '"id": "gelu", "op": "aten.relu", "args": ["%addmm"]'),
        ('"args": ["%grad.expand", 131072.0]', '"args": ["%grad.expand", 131073.0]'),
        ('{"id": "grad.sum"', '{"id": "grad.sum_2"'),
        ('"bias": "%grad.sum"', '"bias": "%grad.sum_2"'),
        ('"grad.sum": 4000', '"grad.sum_2": 4000'),
        ('"mean": 5000', '"mean": 6000'),
        ('"strategy": "retention"', '"strategy": "chen"'),
        ('"note": "six layers', '"note": "all layers'),
        ('"mlp.py:Layer.forward+9"', '"mlp.py:Layer.forward+19"'),
        to="new.json",
    )
    golden("diff-graph.txt", str(remate("diff", "mlp.json", "new.json")))


def test_another_activation_is_named(remate: Remate) -> None:
    """Replaced operations and their readers are not reported as additions, removals or changed arguments."""
    text = Path("mlp.json").read_text()
    assert "aten.gelu_backward" in text
    text = text.replace("gelu", "silu")
    Path("new.json").write_text(text)
    assert remate("diff", "mlp.json", "new.json").err == ""
    printed = remate("diff", "mlp.json", "new.json").out
    assert "operators: aten.gelu -> aten.silu 6x, aten.gelu_backward -> aten.silu_backward 6x" in printed
    assert " added" not in printed.split("model")[0]
    assert " removed" not in printed.split("model")[0]


def test_another_profile_is_one_line(remate: Remate) -> None:
    costs = json.loads(Path("mlp.json").read_text())["costs"]
    more = [(f'"{op}": {ns}', f'"{op}": {ns * 2}') for block in costs.values() for op, ns in block.items()]
    change("mlp.json", *more, to="new.json")
    assert remate("fmt", "--figures", "new.json").status == 0
    result = remate("diff", "mlp.json", "new.json").out.split("\n\n")
    assert result[:2] == ["decisions: none differs", "costs: 8 operations, baseline time +100.00%"]
    assert [part.split()[:2] for part in result[2:]] == [["solve", "lower_bound"], ["effect", "before"]]
    change("new.json", ('"cost": "cpu"', '"cost": "cpu", "profile": "0123456789abcdef"'))
    assert (
        "\ncosts: another profile, 8 operations, baseline time +100.00%\n" in remate("diff", "mlp.json", "new.json").out
    )


def test_what_was_planned_for_compiled_execution(remate: Remate) -> None:
    """Differences are printed as sizes. A peak that an edit made unknown has no value."""
    for name, text in (("a.json", '"budget": 2097152, "peak": 1048576'), ("new.json", '"budget": 1048576')):
        change("mlp.json", ('"cost": "cpu"', f'"cost": "cpu", "compiled": {{{text}}}'), to=name)
    results = [remate("diff", old, "new.json").out for old in ("a.json", "mlp.json")]
    assert (
        "solve\n  budget where compiled  2.00 MiB -> 1.00 MiB\n  peak where compiled    1.00 MiB -> none\n"
        in results[0]
    )
    assert "solve\n  budget where compiled  none -> 1.00 MiB\n\n" in results[1]
    told = json.loads(remate("diff", "a.json", "new.json", "--format", "json").out)["solve"]
    assert told == [
        {"field": "compiled/budget", "old": 2097152, "new": 1048576},
        {"field": "compiled/peak", "old": 1048576, "new": None},
    ]
    assert "2.00 MiB -> 1.00 MiB" in remate("diff", "a.json", "new.json", "--format", "markdown").out


def test_long_lists_are_cut(remate: Remate) -> None:
    text = Path("mlp.json").read_text().replace('"Layer"', '"Layers"').replace("layers.", "stack.")
    Path("new.json").write_text(text)
    cut, full = remate("diff", "mlp.json", "new.json").out, remate("diff", "mlp.json", "new.json", "--all").out
    assert "… and " in cut
    assert "… and " not in full
    assert len(full) > len(cut)


def test_wrong_number_of_files(remate: Remate) -> None:
    assert remate("diff", "mlp.json").status == 2
    assert remate("diff", "--git", "a", "b").status == 2
    assert remate("diff", "mlp.json", "nowhere.json").status == 2


def test_arguments_of_git(remate: Remate, golden: Golden) -> None:
    change("mlp.json", ('"plan": "recompute"', '"plan": "baseline"'), to="new.json")
    Path("broken.json").write_text("<<<<<<< ours\n")
    rest = ("0" * 40, "100644")
    called = [
        remate("diff", "--git", "s.json", "mlp.json", *rest, "new.json", *rest),
        remate("diff", "--git", "s.json", "mlp.json", *rest, "new.json", *rest, "t.json", "similarity index 99%"),
        remate("diff", "--git", "s.json", "/dev/null", ".", ".", "new.json", *rest),
        remate("diff", "--git", "s.json", "mlp.json", *rest, "/dev/null", ".", "."),
        remate("diff", "--git", "s.json"),
    ]
    golden("diff-git.txt", "".join(map(str, called)))
    assert remate("diff", "--git", "s.json", "broken.json", *rest, "mlp.json", *rest).status == 0


def test_git_itself(remate: Remate) -> None:
    """The two lines of the documentation, in a real repository."""
    del remate

    def git(*argv: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        return subprocess.run(["git", *who, *argv], check=True, capture_output=True, text=True).stdout

    git("init", "-q", ".")
    root = Path(__file__).parents[2]
    command = f"PYTHONPATH={root}:{root / 'runtime'} {sys.executable} -m remate diff --git"
    git("config", "diff.remate.command", command)
    Path(".gitattributes").write_text("mlp.json diff=remate\n")
    git("add", "mlp.json", ".gitattributes")
    git("commit", "-qm", "first")
    change("mlp.json", ('"plan": "recompute"', '"plan": "baseline"'))
    assert "layers.0 (Layer): plan recompute -> baseline" in git("diff")


def test_markdown(remate: Remate, golden: Golden) -> None:
    """Names and notes from a file cannot make links, mentions, tables or HTML of the comment."""
    hostile = "<img src=x> @all | `a` ```` [l](http://x)"
    change(
        "mlp.json",
        ('"%layers.2.grad.mm_x"}, "plan": "recompute"', '"%layers.2.grad.mm_x"}'),
        ('"%layers.3.grad.mm_x"}, "plan": "recompute"', '"%layers.3.grad.mm_x"}'),
        ('"strategy": "retention"', f'"strategy": "{hostile}"'),
        to="new.json",
    )
    outcome = remate("diff", "mlp.json", "new.json", "--format", "markdown", "--title", hostile)
    assert outcome.status == 1
    golden("diff-markdown.txt", str(outcome))
    head, _, folded = outcome.out.partition("`````text\n")
    assert "<img" not in re.sub(r"(`+) .*? \1", "", head)
    assert folded.rstrip().endswith("`````\n\n</details>")
    equal = remate("diff", "mlp.json", "mlp.json", "--format", "markdown")
    assert equal == (0, "### `mlp.json`\n\nThe schedules are equal.\n", "")
