"""The fingerprint, computed from the words of `schema/fingerprint.md` alone: nothing of the project is imported but to
compare."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from remate_runtime.format import decode, fingerprint

CORPUS = Path(__file__).parents[2] / "schema" / "corpus"
VALID = sorted((CORPUS / "valid").glob("*.json"))
VECTORS = sorted((CORPUS / "fingerprint").glob("*.json"))
Json = dict[str, Any]


def without(tree: Json, *fields: str) -> Json:
    return {key: value for key, value in tree.items() if key not in fields}


def runs(name: str) -> list[str]:
    """`h.[0-1].a` -> `h.0.a`, `h.1.a`."""
    parts = re.split(r"\[(\d+)-(\d+)\]", name)
    numbers = [range(int(a), int(b) + 1) for a, b in zip(parts[1::3], parts[2::3], strict=True)]
    texts = parts[::3]
    return [
        "".join(itertools.chain(*zip(texts, map(str, chosen), strict=False), texts[len(chosen) :]))
        for chosen in itertools.product(*numbers)
    ]


def ungrouped(entries: Json) -> Json:
    flat: Json = {}
    for name, entry in entries.items():
        if isinstance(entry, dict):
            inner = ungrouped(entry)
            flat |= {f"{path}.{key}" if path else key: each for path in runs(name) for key, each in inner.items()}
        else:
            flat |= dict.fromkeys(runs(name), entry)
    return flat


def stripped(file: Json) -> Json:
    model = {**without(file["model"], "fill", "at", "calls", "note"), "fingerprint": ""}
    for kind in ("parameters", "buffers"):
        if kind in model:
            model[kind] = ungrouped(model[kind])
    if "dims" in model:
        model["dims"] = {name: {**each, "planned": each["min"]} for name, each in model["dims"].items()}
    if "live" in model:
        model["live"] = {name: {**each, "planned": type(each["planned"])(0)} for name, each in model["live"].items()}
    blocks = {}
    for name, block in file["blocks"].items():
        bare = without(block, "plans", "note")
        for kind in ("forward", "backward"):
            if kind in bare:
                bare[kind] = [without(op, "workspace", "source", "note") for op in bare[kind]]
        if "constants" in bare:
            bare["constants"] = {key: without(each, "note") for key, each in bare["constants"].items()}
        if "instances" in bare:
            bare["instances"] = [without(each, "plan", "note") for each in bare["instances"]]
        blocks[name] = bare
    return {"model": model, "blocks": blocks, "program": [without(each, "plan", "note") for each in file["program"]]}


def text(tree: Any) -> str:
    if isinstance(tree, dict):
        return "{" + ",".join(f"{text(key)}:{text(tree[key])}" for key in sorted(tree)) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(map(text, tree)) + "]"
    return float_text(tree) if isinstance(tree, float) else json.dumps(tree, ensure_ascii=False)


def float_text(number: float) -> str:
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    start, shown = "-" * sign, "".join(map(str, digits))
    first = len(shown) - 1 + exponent
    if number == 0:
        return f"{start}0.0"
    if not -5 <= first < 16:
        return f"{start}{shown[0]}{'.' * (len(shown) > 1)}{shown[1:]}e{first}"
    if first < 0:
        return f"{start}0.{'0' * (-first - 1)}{shown}"
    shown = shown.ljust(first + 1, "0")
    return f"{start}{shown[: first + 1]}.{shown[first + 1 :] or '0'}"


def canonical(file: Json) -> bytes:
    return text(stripped(file)).encode()


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_the_text_gives_the_fingerprint(path: Path) -> None:
    file = json.loads(path.read_bytes())
    assert "sha256:" + hashlib.sha256(canonical(file)).hexdigest() == file["model"]["fingerprint"]


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_vectors(path: Path) -> None:
    file = json.loads((CORPUS / "valid" / path.name).read_bytes())
    assert canonical(file) == path.read_bytes()
    assert file["model"]["fingerprint"] == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def test_there_are_vectors() -> None:
    assert {path.stem for path in VECTORS} == {"minimal", "live", "dims", "constants"}


def test_numbers_and_texts_that_writers_spell_in_different_ways() -> None:
    file = json.loads((CORPUS / "valid" / "minimal.json").read_bytes())
    odd = [
        1e-5,
        1e-6,
        1e15,
        1e16,
        1e22,
        1.25e-10,
        1.5e300,
        5e-324,
        -0.0,
        100.0,
        123456789012345678.0,
        -2.5e-7,
        1 / 3,
        2**62,
    ]
    file["blocks"]["All"]["forward"][0]["kwargs"] = {"odd": [*odd, 'é\u2028/\x7f \x01"\\\n\t\b\f\r']}
    file["model"]["fingerprint"] = "sha256:" + hashlib.sha256(canonical(file)).hexdigest()
    assert fingerprint(decode(json.dumps(file))) == file["model"]["fingerprint"]
