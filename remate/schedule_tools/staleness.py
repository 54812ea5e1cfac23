"""Whether a live model is still the one that a schedule was planned for. Every cause has a name and both values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import msgspec

from remate_runtime.errors import ScheduleError
from remate_runtime.flat_step import Argument, Graph, Number, Ref, to_json
from remate_runtime.format import Digest, Json, Model, Schedule

_ABSENT = "absent"


class StalenessCause(msgspec.Struct, frozen=True):
    """One cause: its subject, and its values in the file and in the live model (`absent` if there is none)."""

    what: str
    file: str
    live: str

    def fault(self, hint: str) -> ScheduleError:
        """The same as a fault of the file: R082, which `check --format` reports beside the others."""
        message = f"{self.what}: {self.file} in the file, {self.live} in the model"
        return ScheduleError("R082", message, "/model", hint, 0, 0)


def differences(recorded: Model, live: Model, recorded_graph: Graph, live_graph: Graph) -> list[StalenessCause]:
    """All causes of staleness, the most informative first; empty if the schedule fits the live model."""
    causes = [*_settings(recorded, live), *_signature(recorded, live)]
    return causes + list(_operations(recorded_graph, live_graph))


def digest_differences(schedule: Schedule, model: object) -> list[StalenessCause]:
    """What the digest of the file says of a live model's code, attributes and hooks. Differing versions are reported by
    `differences`, which has the operators that they make."""
    return [] if schedule.digest is None else digest_differences_of(schedule.digest, schedule.model.torch, model)


def digest_differences_of(digest: Digest, torch: str, model: Any) -> list[StalenessCause]:
    """The same of a digest on its own. torch: the version that the model was captured with."""
    from remate_runtime.staleness import compare_digest

    faults = compare_digest(digest, _release(torch), model).faults
    return [StalenessCause(text, "as planned", "changed") for text in faults]


def _settings(recorded: Model, live: Model) -> Iterator[StalenessCause]:
    pairs = (
        ("device class", recorded.device, live.device),
        ("torch version", _release(recorded.torch), _release(live.torch)),
        ("model class", recorded.name, live.name),
        ("training mode", _mode(recorded), _mode(live)),
        ("autocast", recorded.autocast or "off", live.autocast or "off"),
    )
    for what, ours, theirs in pairs:
        if ours != theirs:
            yield StalenessCause(what, ours, theirs)
    for what, before, now in (
        ("submodule in another mode than the model", recorded.mode_overrides, live.mode_overrides),
        ("frozen parameter", recorded.frozen, live.frozen),
    ):
        for name in sorted({*before} ^ {*now}):
            yield StalenessCause(f"{what} {name}", _presence(name in before), _presence(name in now))


def _release(torch: str) -> str:
    """The build (`+cpu`, `+cu130`) makes no other graph; the device class is compared on its own."""
    return torch.partition("+")[0]


def _mode(model: Model) -> str:
    return "train()" if model.training else "eval()"


def _presence(there: bool) -> str:
    return "present" if there else _ABSENT


def _signature(recorded: Model, live: Model) -> Iterator[StalenessCause]:
    yield from _mapping("parameter", recorded.parameters, live.parameters)
    yield from _mapping("buffer", recorded.buffers, live.buffers)
    yield from _mapping("tied name", recorded.tied, live.tied)
    yield from _mapping("live attribute", dict.fromkeys(recorded.live, "live"), dict.fromkeys(live.live, "live"))
    yield from _mapping("input", _leaves(recorded.inputs), _leaves(live.inputs))
    yield from _mapping("output", _leaves(recorded.outputs), _leaves(live.outputs))


def _mapping(kind: str, recorded: Mapping[str, str], live: Mapping[str, str]) -> Iterator[StalenessCause]:
    for name in [*recorded, *(name for name in live if name not in recorded)]:
        ours, theirs = recorded.get(name, _ABSENT), live.get(name, _ABSENT)
        if ours != theirs:
            yield StalenessCause(f"{kind} {name}", ours, theirs)


def _leaves(tree: Json, path: str = "") -> dict[str, str]:
    """The leaves of a tree of inputs or outputs by their path: type for a tensor, the value for a literal."""
    if isinstance(tree, list | tuple):
        pairs: Any = ((f"{path}[{i}]", item) for i, item in enumerate(tree))
    elif isinstance(tree, dict):
        if tree.keys() & {"tensor", "value", "literal", "live"}:
            return {str(tree.get("name") or path): _leaf(tree)}
        pairs = ((_join(path, key), item) for key, item in tree.items() if isinstance(item, list | tuple | dict))
    else:
        return {}
    return {name: text for inner, item in pairs for name, text in _leaves(item, inner).items()}


def _join(path: str, key: str) -> str:
    """Keys that only say what kind of node it is are left out of the path."""
    return (
        path
        if key in ("args", "kwargs", "tuple", "list", "dict", "fields", "returns", "attributes")
        else f"{path}.{key}"
        if path
        else key
    )


def _leaf(leaf: dict[str, Any]) -> str:
    grad = ", needs a gradient" if leaf.get("grad") else ""
    if "literal" in leaf:
        return repr(leaf["literal"])
    if "live" in leaf:
        return "a live number"
    return f"{leaf['tensor']}{grad}" if "tensor" in leaf else f"tensor{grad}"


def _operations(recorded: Graph, live: Graph) -> Iterator[StalenessCause]:
    """Operators that one graph has more often than the other, and the first place where forward differs.

    Ids are no help here: a changed model is cut into other blocks. The order of forward is the model's own; that of
    backward is the planner's, so there only operators are counted."""
    ours, theirs = (Counter(op.op for op in graph.operations) for graph in (recorded, live))
    for name in sorted(ours.keys() | theirs.keys()):
        if ours[name] != theirs[name]:
            yield StalenessCause(f"operator {name}", f"{ours[name]}x", f"{theirs[name]}x")
    for before, now in zip_longest(_calls(recorded), _calls(live), fillvalue=(_ABSENT, "")):
        if before[0] != now[0]:
            yield StalenessCause("first operation that differs", "".join(before), "".join(now))
            return


def _calls(graph: Graph) -> Iterator[tuple[str, str]]:
    """The forward operations as text that does not depend on ids, `aten.gelu(%4) -> f32[8,256]`, and their source."""
    producers = {
        v: f"{at}:{k}" for at, op in enumerate(graph.operations) for k, v in enumerate(op.writes) if v is not None
    }

    def text(value: Argument | list[Argument]) -> str:
        if isinstance(value, Ref):
            source = graph.values[value.value]
            return f"%{source.data or source.name if source.producer < 0 else producers[value.value]}"
        if isinstance(value, Number):
            return str(to_json(value, lambda at: graph.values[at].name)["number"])
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(text, value))}]"
        return repr(value)

    for op in graph.operations[: graph.backward_start]:
        arguments = [*map(text, op.args), *(f"{key}={text(value)}" for key, value in sorted(op.kwargs.items()))]
        types = ", ".join("none" if v is None else str(graph.values[v].type) for v in op.writes)
        yield f"{op.op}({', '.join(arguments)}) -> {types}", f"  ({op.source})" if op.source else ""
