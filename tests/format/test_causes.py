"""One fault for each cause, with the nearest name: what is wrong in a template is reported once, not once for each
instance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remate.schedule_tools.analysis import open_text
from remate_runtime.errors import ScheduleError

MLP = (Path(__file__).parents[1] / "cli/data/mlp.json").read_text()  # six instances of one block


def faults(tree: Any) -> list[tuple[str, str, str, str]]:
    with pytest.raises(ScheduleError) as caught:
        open_text(json.dumps(tree).encode())
    return [(fault.code, fault.where, fault.message, fault.hint) for fault in caught.value.faults]


def changed(old: str, new: str, count: int = 1) -> Any:
    assert MLP.count(old) >= count
    return json.loads(MLP.replace(old, new, count))


def test_a_misspelt_id_that_is_read_once() -> None:
    ((code, where, message, hint),) = faults(changed('["%addmm"]', '["%adm"]'))
    assert (code, where) == ("R030", "/blocks/Layer/forward/2/args/0")
    assert message == "'%adm' refers to no value here"
    assert hint == "did you mean %addmm?"


def test_a_misspelt_definition_that_is_read_in_several_places() -> None:
    ((code, where, message, hint),) = faults(changed('"id": "addmm"', '"id": "admm"'))
    assert (code, where) == ("R030", "/blocks/Layer/forward/2/args/0")
    assert message == "'%addmm' refers to no value here (so in 1 more place)"
    assert hint == "did you mean %admm?"


def test_the_same_id_twice() -> None:
    ((code, where, _, _),) = faults(changed('"id": "gelu"', '"id": "addmm"'))
    assert (code, where) == ("R031", "/blocks/Layer/forward/2")


def test_a_misspelt_parameter_of_a_block() -> None:
    tree = json.loads(MLP)
    block = tree["blocks"]["Layer"]
    block["parameters"] = {"wieght" if name == "weight" else name: kind for name, kind in block["parameters"].items()}
    ((code, where, message, hint),) = faults(tree)
    assert (code, where) == ("R037", "/program/0")
    assert message == "the model has no parameter or buffer 'layers.0.wieght' (so in 5 more places)"
    assert "layers.0.weight" in hint


def test_a_misspelt_input_in_a_binding() -> None:
    tree = json.loads(MLP)
    bound = tree["program"][2]["with"]
    tree["program"][2]["with"] = {"gradd" if name == "grad" else name: value for name, value in bound.items()}
    assert faults(tree) == [
        ("R034", "/program/2/with/gradd", "block 'Layer' has no input 'gradd'", "did you mean grad?")
    ]


def test_an_input_that_is_not_bound_is_told_for_each_line_that_lacks_it() -> None:
    tree = json.loads(MLP)
    for at in (1, 2):
        del tree["program"][at]["with"]["x"]
    assert [(code, where) for code, where, _, _ in faults(tree)] == [("R034", "/program/1"), ("R034", "/program/2")]
