"""The hooks and the workflow to copy: their files parse, and every command in them runs on a schedule and means it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .changes import change
from .processes import environment

ROOT = Path(__file__).parents[2]
Remate = Callable[..., Any]


def loaded(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def hooks() -> list[dict[str, Any]]:
    return loaded(".pre-commit-hooks.yaml")


def commands() -> Iterator[list[str]]:
    """The calls of remate in the workflow."""
    for step in loaded("examples/ci/schedules.yml")["jobs"]["schedules"]["steps"]:
        for line in step.get("run", "").splitlines():
            if line.startswith("remate "):
                yield shlex.split(line)[1:]


def test_the_configuration_shows_the_published_hooks() -> None:
    shown = loaded("examples/ci/pre-commit-config.yaml")["repos"][0]["hooks"]
    parts = ("id", "name", "entry", "files")
    assert [[hook[part] for part in parts] for hook in shown] == [[hook[part] for part in parts] for hook in hooks()]


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: hook["id"])
def test_hooks(remate: Remate, hook: dict[str, Any]) -> None:
    program, *argv = shlex.split(hook["entry"])
    assert program == "remate"
    names = ["a.schedule.json", "b.schedule.json"]
    assert all(re.search(hook["files"], f"plans/{name}") for name in names)
    for name in names:
        shutil.copy("mlp.json", name)
    assert remate(*argv, *names).status == 0
    change("b.schedule.json", ('"recompute": ["addmm"]', '"recompute": ["adddm", "a b"]'))
    assert remate(*argv, *names).status == 1
    if hook["id"] == "remate-fmt":  # pre-commit itself describes files that a hook has changed
        change("a.schedule.json", ('"version": 1', '"version":  1'))
        assert remate(*argv, "a.schedule.json").status == 0
        assert Path("a.schedule.json").read_bytes() == Path("mlp.json").read_bytes()


@pytest.mark.usefixtures("planned")
def test_workflow(remate: Remate) -> None:
    """On a fine schedule all steps pass; each finds what it is there for."""
    Path("plans").mkdir()
    path, good = Path("plans/s.schedule.json"), Path("s.json").read_text()
    shutil.copy("models.py", "train.py")
    by_name = {argv[0]: [str(path) if "*" in word else word for word in argv] for argv in commands()}
    assert list(by_name) == ["fmt", "check", "lint"]

    def statuses(text: str) -> list[int]:
        path.write_text(text)
        return [remate(*argv).status for argv in by_name.values()]

    assert statuses(good) == [0, 0, 0]
    assert statuses(good.replace('"version": 1', '"version":  1'))[:2] == [1, 0]
    assert statuses(re.sub(r'"peak": \d+', '"peak": 1', good, count=1)) == [0, 1, 1]
    annotated = remate(*by_name["lint"]).out
    assert f"::warning file={path},line=" in annotated
    Path("train.py").write_text("from models import one_layer_more as build\n\n__all__ = ['build']\n")
    assert statuses(good)[:2] == [0, 3]
    assert "title=R082" in remate(*by_name["check"]).out


@pytest.mark.slow
@pytest.mark.usefixtures("remate")
def test_the_comment(tmp_path: Path) -> None:
    """The step runs in a real repository, at the merge of a pull request as GitHub checks it out."""
    (step,) = (
        s for s in loaded("examples/ci/schedules.yml")["jobs"]["schedules"]["steps"] if s.get("name") == "What changed"
    )
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "remate": f'exec "{sys.executable}" -m remate "$@"',
        "gh": f'echo "$@" > "{tmp_path}/called"; cp "${{@: -1}}" "{tmp_path}/posted.md"',
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    variables = environment(PATH=f"{programs}:{os.environ['PATH']}", RUNNER_TEMP=str(tmp_path), NUMBER="7")

    def bash(line: str) -> None:
        subprocess.run(["bash", "-e", "-c", line], check=True, env=variables, capture_output=True)

    git = "git -c user.name=n -c user.email=e@x"
    shutil.copy("mlp.json", "a b.schedule.json")
    shutil.copy("mlp.json", "c.schedule.json")
    bash(f"git init -b main .; git add *.schedule.json; {git} commit -m one; git checkout -b pull")
    change("a b.schedule.json", ('"%layers.2.grad.mm_x"}, "plan": "recompute"', '"%layers.2.grad.mm_x"}'))
    bash(f"{git} commit -am two; git checkout main; {git} merge --no-ff -m three pull")
    bash(step["run"])
    assert (tmp_path / "called").read_text().startswith("pr comment 7 ")
    posted = (tmp_path / "posted.md").read_text()
    assert posted.startswith("### `a b.schedule.json`\n")
    assert posted.count("### ") == 1
    assert "- `layers.1` (`Layer`): plan `recompute` to `baseline`; now kept: `addmm`" in posted
    (tmp_path / "called").unlink()
    bash(
        f"touch other; git checkout -b more; git add other; {git} commit -m four; git checkout main; {git} merge "
        "--no-ff -m five more"
    )
    bash(step["run"])
    assert not (tmp_path / "called").exists()
