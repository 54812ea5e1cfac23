"""A file from a stranger, with an attack in every field that takes text, goes through every command and every format:
no raw control character, no invisible or turned text, no line of its own and no workflow command comes out."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import remate.cli as remate_cli
from remate.present.faults import FORMATS, render
from remate.schedule_tools.analysis import open_text
from remate_runtime import RemateError, apply
from remate_runtime.errors import ScheduleError
from remate_runtime.format import decode, fingerprint
from remate_runtime.support.plain_text import plain, plain_json, plain_lines

from .conftest import DATA, Outcome

Remate = Callable[..., Outcome]
ATTACK = '::error file=a::b\x1b[31m\u202e\u200b\x9b2J\x07\r\nINJECTED\n::set-output name=a::b##[error]z\u2028</script><svg onload="x">&`|@'
SOURCE = "\u202e\u200b##[error]\x9b.py"  # the field refuses the rest


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, item in list(items):
        if isinstance(item, str):
            yield tree, key
        yield from places(item)


def full() -> dict[str, Any]:
    """A schedule that also uses the optional fields."""
    tree = json.loads((DATA / "mlp.json").read_text())
    tree["model"]["note"] = tree["solve"]["note"] = tree["blocks"]["Layer"]["note"] = "a"
    tree["program"][0]["note"] = tree["blocks"]["Layer"]["forward"][0]["note"] = "a"
    tree["blocks"]["Layer"]["plans"]["recompute"][0]["note"] = "a"
    tree["model"]["inputs"]["kwargs"] = {"a": {"literal": "a"}, "b": {"dict": {"a": {"literal": "a"}}}}
    tree["model"]["outputs"] = {"dict": {"loss": tree["model"]["outputs"], "a": {"literal": "a"}}}
    group = {
        "at": ["a"],
        "class": "a",
        "reads": {"a": "a", "b": {"is": "a"}, "c": {"dict": {"a": "a"}}},
        "hooks": ["a"],
    }
    tree["digest"] = {
        "packages": {"a": "a"},
        "functions": {"a": None},
        "values": {"a": "a"},
        "modules": [group],
        "note": "a",
    }
    tree["digest"]["objects"] = [copy.deepcopy(group)]
    return tree


def variants() -> list[bytes]:
    """One file for each text and each key that contains the attack."""
    produced, count = [], sum(1 for _ in places(full()))
    for attack in (ATTACK, SOURCE, "%" + ATTACK):
        for number in range(count):
            tree = full()
            holder, key = list(places(tree))[number]
            holder[key] = attack
            produced.append(json.dumps(tree).encode())
            if isinstance(holder, dict) and attack == ATTACK:
                tree = full()
                holder, key = list(places(tree))[number]
                holder[attack] = holder.pop(key)
                produced.append(json.dumps(tree, ensure_ascii=False).encode())
    return produced


def accepted() -> bytes:
    """A file in which every text that may contain an attack contains it."""
    tree, taken = full(), 0
    for number in range(sum(1 for _ in places(tree))):
        for attack in (ATTACK, SOURCE):
            trial = copy.deepcopy(tree)
            holder, key = list(places(trial))[number]
            holder[key] = attack.replace("INJECTED", "NOTED") if key == "note" else attack  # notes keep their lines
            try:
                open_text(json.dumps(trial).encode())
            except ScheduleError:
                continue
            tree, taken = trial, taken + 1
            break
    assert taken > 20
    tree["model"]["fingerprint"] = fingerprint(decode(json.dumps(tree)))
    return json.dumps(tree).encode()


def check(shown: str, commands: bool = False) -> None:
    """commands: workflow commands that the format `github` prints on purpose."""
    assert all(char.isprintable() or char == "\n" for char in shown), ascii(shown)
    assert "##[" not in shown
    for line in map(str.lstrip, shown.split("\n")):
        assert not line.startswith("::") or (commands and re.match(r"::(error|warning) file=[^:]*,title=[^:]*::", line))
        assert not line.startswith("INJECTED")


@pytest.fixture(scope="module")
def hostile() -> bytes:
    return accepted()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_faults(form: str) -> None:
    seen = 0
    for data in variants():
        try:
            decode(data)
        except ScheduleError as error:
            check(render(form, ATTACK, data, error.faults), commands=form == "github")
            check(str(error))
            seen += 1
    assert seen > 100


@pytest.mark.parametrize(
    "command",
    [
        "check S.json",
        "check S.json --format json",
        "check S.json S.json --format json",
        "check S.json --format github",
        "lint S.json",
        "lint S.json --format json",
        "lint S.json --format github",
        "fmt --check S.json",
        "show S.json --all --plot out.svg",
        "explain S.json",
        "explain S.json --format json",
        "explain S.json layers.3.addmm",
        "explain S.json layers.3.addmm --format json",
        "diff S.json mlp.json",
        "diff mlp.json S.json --all",
        "diff mlp.json S.json --format json",
        "diff mlp.json S.json --format markdown",
        "diff --git S.json S.json 0 0 mlp.json 0 0",
        "diff --git S.json S.json 0 0 /dev/null 0 0",
        "edit S.json --plan layers.3=baseline --dry-run",
        "migrate S.json --check",
        "report S.json -o out.html",
        "report mlp.json -o out.html --frontier many",
        "trace S.json -o out.json",
        "trace S.json --snapshot out.pickle",
    ],
)
def test_every_command(remate: Remate, hostile: bytes, command: str) -> None:
    Path("many").mkdir()
    for path in ("S.json", "many/S.json"):
        Path(path).write_bytes(hostile)
    outcome = remate(*command.split())
    assert outcome.status in (0, 1), outcome
    assert "R0" not in outcome.err.replace("R081", "").replace("R082", ""), "the file was not taken"
    check(outcome.out, commands="github" in command)
    check(outcome.err)
    for path in Path().glob("out.*"):
        if path.suffix != ".pickle":
            written(path)


@pytest.mark.quick(
    "budget 75% -o out.json ", "fmt ", "steps 1 ", "merge S.json T.json s.json", "merge S.json S.json T.json"
)
@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(
    "command",
    [
        "replan S.json --model models.py:build -o out.json --quiet",
        "rebind S.json --model models.py:build -o out.json",
        "check S.json --model models.py:build",
        "check S.json --model models.py:build --step",
        "run S.json --model models.py:build --steps 1 --quiet",
        "fmt --figures S.json",
        "merge s.json S.json s.json",
        "merge s.json s.json S.json",
        "merge S.json s.json T.json",
        "merge S.json T.json s.json",
        "merge S.json S.json T.json",
        "plan models.py:build --budget 75% -o out.json --profile S.json --quiet",
        "plan models.py:build --budget 75% -o out.json --profile P.json --quiet",
        "plan models.py:build --budget 75% -o S.json --quiet",
    ],
)
def test_commands_that_bring_a_model_or_two_files_together(remate: Remate, hostile: bytes, command: str) -> None:
    tree = json.loads(hostile)
    Path("S.json").write_bytes(hostile)
    tree["note"] = tree["program"][0]["note"] = ATTACK + "2"
    Path("T.json").write_text(json.dumps(tree))
    profile = {
        "format": "remate.profile",
        "version": 1,
        ATTACK: ATTACK,
        "entries": {ATTACK: {"ns": 1, "workspace": ATTACK}},
    }
    Path("P.json").write_text(json.dumps(profile))
    outcome = remate(*command.split())
    assert "internal error" not in outcome.err
    check(outcome.out)
    check(outcome.err)
    for path in Path().glob("out.*"):
        written(path)


@pytest.mark.slow
def test_bare_instances(remate: Remate) -> None:
    """Names with such characters are refused, with a readable message."""
    tree = json.loads(Path("graph.json").read_text())
    for number in range(sum(1 for _ in places(tree))):
        copied = copy.deepcopy(tree)
        holder, key = list(places(copied))[number]
        old, holder[key] = holder[key], ATTACK
        Path("I.json").write_text(json.dumps(copied).replace(json.dumps(old), json.dumps(ATTACK)))
        for command in (
            "solve I.json --budget 80% -o out.json --quiet",
            "solve I.json --check graph.json",
            "check I.json",
        ):
            outcome = remate(*command.split())
            assert "internal error" not in outcome.err
            check(outcome.out + outcome.err)
            assert outcome.status in (1, 2)


def test_names_of_models_and_functions(remate: Remate) -> None:
    for target in (f"{SOURCE}:build", f"models.py:{ATTACK}", f"{ATTACK}:build"):
        outcome = remate("plan", target, "--budget", "75%", "-o", "out.json")
        assert outcome.status == 2
        check(outcome.out + outcome.err)


def written(path: Path) -> None:
    text = path.read_text()
    check(text)
    assert path.suffix == ".json" or "<svg onload" not in text
    assert path.suffix == ".json" or text.count("</script>") == 2 * (path.suffix == ".html")
    if path.suffix == ".json":
        check(json.dumps(json.loads(text), ensure_ascii=False))


def test_a_path_of_a_file_that_is_not_there(remate: Remate) -> None:
    for command in ("check", "show", "lint", "explain"):
        outcome = remate(command, ATTACK.replace("\n::", "\n"))
        assert outcome.status == 2
        check(outcome.out + outcome.err)


def test_what_a_model_that_is_not_the_planned_one_is_told(tmp_path: Path, hostile: bytes) -> None:
    path = tmp_path / "S.json"
    for data in (hostile, *variants()[::7]):
        path.write_bytes(data)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with pytest.raises(RemateError) as caught:
                apply(nn.Sequential(nn.Linear(2, 2)), str(path))
        for shown in (str(caught.value), *(str(warning.message) for warning in warned)):
            check(shown)


def test_commands_print_through_one_function() -> None:
    """All other output is JSON in ASCII, or contains no text of a file."""
    allowed = {"output.py", "several.py", "diff.py", "explain.py", "strategies.py", "completion.py"}
    folder = Path(remate_cli.__file__).parent
    assert {path.name for path in folder.glob("*.py") if re.search(r"(?<!\w)print\(", path.read_text())} == allowed


def test_plain() -> None:
    assert plain("h.0 é 漢 → 🙂") == "h.0 é 漢 → 🙂"
    assert plain("a\x1b[0m\n\u202eb\u200b\ud800\U000e0041") == "a\\x1b[0m\\n\\u202eb\\u200b\\ud800\\U000e0041"
    assert plain("  ::error::x") == "  \\x3a:error::x"
    assert plain("a::b") == "a::b"
    assert plain("a ##[error]") == "a #\\x23[error]"
    assert plain_lines("a\n::b\n\x1bc") == "a\n\\x3a:b\n\\x1bc"
    assert json.loads(plain_json(json.dumps(ATTACK))) == ATTACK
