"""Checks the trees `model.inputs` and `model.outputs`. Does not require torch.

A node is a leaf (`tensor` or `live` in inputs, `value` in outputs), `tuple`, `list`, `dict`, `record`, or `literal`.
Its key determines which.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from .json_values import is_array, is_object
from .limits import MAX_DEPTH, MAX_PARAMETERS, MAX_TEXT
from .literals import Faults, check_number, check_object
from .signature import escape, is_attribute, is_permutation
from .vocabulary import CONTAINERS, INPUT_LEAVES

_FIELDS = {
    "tensor": {"tensor", "name", "grad", "same"},
    "value": {"value", "name", "grad", "detached", "gradient_axes"},
    "record": {"record", "fields"},
}
_LEAVES = {"tensor": INPUT_LEAVES, "value": ("value",)}


class TreeCheck:
    """Checks the trees of a schedule. Names of input leaves must be unique, and so must those of output leaves.

    Args:
        faults: Receives the faults.
        live: Names in `live` of the model.
    """

    def __init__(self, faults: Faults, live: Collection[str]) -> None:
        self._faults = faults
        self._names: set[str] = set()
        self._known_live = live
        self._live_names: set[str] = set()

    def inputs(self, value: dict[str, Any], where: str) -> None:
        """Check `{"args": [tree...], "kwargs": {name: tree}}`, both optional."""
        self._names = set()
        for key in value:
            if key not in ("args", "kwargs"):
                self._faults.add(
                    "R016", f"unknown key {key[:80]!r}", f"{where}/{escape(key)}", "inputs have `args` and `kwargs`"
                )
        args, kwargs = value.get("args", []), value.get("kwargs", {})
        self._items(args, list, "tensor", f"{where}/args", 4)
        self._items(kwargs, dict, "tensor", f"{where}/kwargs", 4)

    def output(self, value: Any, where: str) -> None:
        """Check a tree, or `{"returns": tree, "attributes": {path: tree}}`."""
        self._names = set()
        if not is_object(value) or "returns" not in value:
            self._node(value, "value", where, 3)
            return
        for key in value.keys() - {"returns", "attributes"}:
            self._faults.add("R016", f"unknown key {key[:80]!r}", f"{where}/{escape(key)}")
        self._node(value["returns"], "value", f"{where}/returns", 4)
        attributes = value.get("attributes")
        if not attributes:
            self._faults.add("R016", "without `attributes` it is a plain tree", where, "leave `returns` out")
            return
        self._items(attributes, dict, "value", f"{where}/attributes", 4)
        for path in attributes if is_object(attributes) else ():
            if not is_attribute(path):
                self._faults.add(
                    "R016",
                    f"{path[:80]!r} is no attribute that forward may set",
                    f"{where}/attributes/{escape(path)}",
                    "the path of a module and a name that does not begin with `__`",
                )

    def _node(self, node: Any, leaf: str, where: str, depth: int) -> None:
        known = (*_LEAVES[leaf], *CONTAINERS)
        kinds = [key for key in known if key in node] if is_object(node) else []
        if not is_object(node) or len(kinds) != 1:
            self._faults.add("R016", "not a node of a tree", where, f"an object with one of {', '.join(known)}")
            return
        kind = kinds[0]
        for key in node.keys() - _FIELDS.get(kind, {kind}):
            self._faults.add("R016", f"a {kind} has no {key[:80]!r}", f"{where}/{escape(key)}")
        if depth >= MAX_DEPTH - 1:
            self._faults.add("R071", f"arrays and objects nested more than {MAX_DEPTH} deep", where)
        elif kind == leaf:
            self._leaf(node, leaf, where)
        elif kind == "live":
            self._live(node["live"], f"{where}/live")
        elif kind == "literal":
            self._literal(node["literal"], f"{where}/literal")
        elif kind == "record":
            self._record(node, leaf, where, depth)
        else:
            self._items(node[kind], dict if kind == "dict" else list, leaf, f"{where}/{kind}", depth + 1)

    def _items(self, value: Any, kind: type, leaf: str, where: str, depth: int) -> None:
        if kind is dict and is_object(value):
            items: Iterable[tuple[object, Any]] = value.items()
        elif kind is not dict and is_array(value):
            items = enumerate(value)
        else:
            self._faults.add("R016", f"expected {'an object' if kind is dict else 'an array'}", where)
            return
        for key, item in items:
            self._node(item, leaf, f"{where}/{escape(str(key))}", depth + 1)

    def _leaf(self, node: dict[str, Any], leaf: str, where: str) -> None:
        text, name = node[leaf], node.get("name")
        if not isinstance(text, str):
            self._faults.add("R016", "expected text", f"{where}/{leaf}")
        elif leaf == "tensor":
            self._faults.tensor_type(text, f"{where}/tensor")
        else:
            self._faults.reference(text, f"{where}/value")
        if not isinstance(name, str):
            self._faults.add("R016", "a leaf has a name", where if name is None else f"{where}/name", 'add "name"')
        else:
            self._faults.name(name, f"{where}/name")
            same = node.get("same")
            if "same" in node and not (isinstance(same, str) and same in self._names):
                self._faults.add("R016", "`same` names no input before this one", f"{where}/same", "delete it")
            if name in self._names:
                self._faults.add(
                    "R031", f"the name {name[:80]!r} twice", f"{where}/name", "give each leaf its own name"
                )
            self._names.add(name)
            if len(self._names) == MAX_PARAMETERS + 1:
                self._faults.add("R072", f"over {MAX_PARAMETERS} inputs or outputs", where)
        if not isinstance(node.get("grad", False), bool):
            self._faults.add("R016", "expected true or false", f"{where}/grad")
        if node.get("detached", True) is not True or {"grad", "detached"} <= node.keys():
            message = "`detached` is true or left out, and an output has `grad` or `detached`, not both"
            self._faults.add("R016", message, f"{where}/detached")
        if "gradient_axes" in node and not (node.get("grad") is True and is_permutation(node["gradient_axes"])):
            message = "`gradient_axes` has each axis of an output with `grad` once"
            self._faults.add("R016", message, f"{where}/gradient_axes", "delete it")

    def _live(self, name: Any, where: str) -> None:
        if not isinstance(name, str):
            self._faults.add("R016", "expected the name of a live input", where)
        elif name in self._live_names:
            self._faults.add("R031", f"the live input {name[:80]!r} twice", where, "give each its own name")
        elif name not in self._known_live:
            self._faults.add("R037", f"{name[:80]!r} is not in `live` of the model", where)
        else:
            self._live_names.add(name)

    def _literal(self, value: Any, where: str) -> None:
        if is_object(value) and "number" in value:
            self._faults.add("R016", "inputs and outputs hold no numbers that follow from live attributes", where)
        elif is_object(value):
            check_object(self._faults, value, where)
        elif isinstance(value, (list, tuple)):
            self._faults.add("R016", "a literal is null, true, false, a number or a text", where)
        elif isinstance(value, str):
            if len(value) > MAX_TEXT:
                self._faults.add("R073", f"a text of more than {MAX_TEXT} characters", where)
        else:
            check_number(self._faults, value, where)

    def _record(self, node: dict[str, Any], leaf: str, where: str, depth: int) -> None:
        if not isinstance(node["record"], str):
            self._faults.add("R016", "expected the name of a class", f"{where}/record")
        else:
            self._faults.name(node["record"], f"{where}/record")
        if "fields" not in node:
            self._faults.add("R016", "a record has `fields`", where)
        else:
            self._items(node["fields"], dict, leaf, f"{where}/fields", depth + 1)
