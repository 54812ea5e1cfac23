"""Instance files: what is written is read again, other people's forms are read, and a bad one is reported with its
place."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import remate
from remate.errors import InstanceError
from remate.standalone_graphs import BareInstance, decode, decode_result, encode, read
from remate.standalone_graphs.readers import from_tree, parse

from .dags import random_dag

ROOT = Path(__file__).parents[2]
GOOD: dict[str, Any] = {
    "format": "remate.instance",
    "version": 1,
    "nodes": [
        {"id": "a", "time": 3, "bytes": [4, 2]},
        {"id": "b", "time": 2, "bytes": [4], "in_place": ["a"]},
        {"id": "c", "time": 1, "bytes": []},
    ],
    "edges": [["a", "b"], ["a:1", "c"], ["b", "c"]],
    "order": ["a", "b", "c"],
    "backward_start": "c",
    "pins": ["b"],
}


def schema(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((ROOT / f"schema/{name}-1.schema.json").read_text("utf-8")))


@pytest.mark.parametrize("seed", range(8))
def test_round_trip(seed: int) -> None:
    bare = random_dag(seed, 12)
    text = encode(bare)
    assert decode(text) == bare
    assert encode(decode(text)) == text
    schema("instance").validate(json.loads(text))


def test_a_result_is_written_by_its_schema() -> None:
    solution = remate.solve(random_dag(3, 12), "80%", "greedy")
    schema("result").validate(json.loads(solution.encode()))
    assert decode_result(solution.encode()) == solution


def changed(**fields: Any) -> dict[str, Any]:
    return {**GOOD, **fields}


def node(**fields: Any) -> dict[str, Any]:
    return changed(nodes=[GOOD["nodes"][0], {**GOOD["nodes"][1], **fields}, GOOD["nodes"][2]])


# A fault, words of its message, and whether the JSON Schema finds it, too.
BAD = {
    "other version": (changed(version=2), "version 2", True),
    "no nodes": (changed(nodes=[], edges=[], order=[], backward_start=None, pins=[]), "no nodes", True),
    "unknown field": (changed(color="red"), "unknown field", True),
    "unknown field of a node": (node(colour="red"), "unknown field", True),
    "text for a number": (node(time="3"), "line 1", True),
    "a fraction": (node(time=0.5), "Expected `int`", True),
    "negative": (node(time=-1), "at least 0", True),
    "too long": (node(time=1 << 61), "2\\^60", True),
    "twice": (node(id="a"), "two nodes have the id", False),
    "colon": (node(id="b:b"), "without `:`", True),
    "edge from nothing": (changed(edges=[["x", "b"]]), "which no node produces", False),
    "edge from no output": (changed(edges=[["a:2", "b"]]), "which no node produces", False),
    "edge with a zero": (changed(edges=[["a:0", "b"]]), "which no node produces", True),
    "edge to nothing": (changed(edges=[["a", "x"]]), "which is not a node", False),
    "circle": (changed(edges=[*GOOD["edges"], ["b", "a"]], order=[]), "cycle", False),
    "reads itself": (changed(edges=[*GOOD["edges"], ["b", "b"]], order=[]), "cycle", False),
    "order too early": (changed(order=["b", "a", "c"]), "comes before", False),
    "order incomplete": (changed(order=["a", "b"]), "every node once", False),
    "backward_start": (changed(backward_start="x"), "not a node", False),
    "pin": (changed(pins=["c"]), "which no node produces", False),
    "takes what it does not read": (node(in_place=["a:1"]), "must read this output", False),
    "takes other bytes": (node(bytes=[3]), "have as many bytes", False),
    "takes several": (node(in_place=["a", "a:1"]), "a node with one output", False),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said(name: str) -> None:
    tree, word, seen = BAD[name]
    with pytest.raises(InstanceError, match=word):
        parse(json.dumps(tree).encode())
    assert schema("instance").is_valid(tree) != seen


def test_the_good_one_is_good() -> None:
    bare = parse(json.dumps(GOOD).encode())
    assert bare == from_tree(GOOD)
    schema("instance").validate(GOOD)


@pytest.mark.slow("7")
@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{", b"\xff", b"{}", b'{"nodes": 3}', b'{"a": 1, "a": 2}', b"[" * 100_000, b'{"nodes": [{}]}',
        b'{"nodes": [{"id": 1, "time": 1e400, "bytes": '
        b'1}]}', b'{"nodes": [{"id": 1, "time": 1, "bytes": 1}], "links": 3}',
        b'{"nodes": [{"id": 1, "time": 1, "bytes": 1}], "links": [[1, 2]]}', b'{"nodes": [], "platform": "x"}',
        b'{"nodes": [{"id": 1, "time": 1, "bytes": 1}], "graph": {"order": [[]]}}',
        b'{"format": "remate.instance", "version": 1, "nodes": "x"}', b'{"format": 3}',
    ],
    ids=range(16),
)  # fmt: skip
def test_no_text_is_a_traceback(text: bytes) -> None:
    with pytest.raises(InstanceError):
        parse(text)


def test_nothing_large_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_bytes(b" " * (17 << 20))
    with pytest.raises(InstanceError, match="MiB"):
        read(path)


def test_moccasin_by_both_of_its_kinds(tmp_path: Path) -> None:
    trained = {
        "graph": {"name": "net"},
        "nodes": [
            {"name": "conv", "backward": False, "cost_cpu": 10, "cost_ram": 100, "id": 0},
            {"name": "conv_backward", "backward": True, "cost_cpu": 20, "cost_ram": 50, "id": 1},
        ],
        "links": [{"source": 0, "target": 1}],
    }
    bare = from_tree(trained)
    assert (bare.name, bare.order, bare.backward_start, bare.edges) == (
        "net",
        ("conv", "conv_backward"),
        "conv_backward",
        (("conv", "conv_backward"),),
    )
    layered = {
        "graph": {"order": [0, 2, 1]},
        "nodes": [{"out_cost": 5, "duration": 1, "name": name} for name in (0, 1, 2)],
        "links": [{"0": 0, "1": 1}, {"0": 2, "1": 1}],
    }
    path = tmp_path / "layered.json"
    path.write_text(json.dumps(layered))
    bare = read(path)
    assert (bare.name, bare.order, bare.backward_start) == ("layered", ("0", "2", "1"), None)
    assert [(n.time, n.bytes) for n in bare.nodes] == [(1, (5,))] * 3


def test_poet() -> None:
    tree = {
        "platform": "a72",
        "model": "net",
        "forward": [0],
        "nodes": [{"id": k, "name": f"layer{k}", "bytes": 8, "time": 1.5e-6} for k in (0, 1)],
        "edges": [[0, 1]],
    }
    bare = from_tree(tree)
    assert (bare.name, bare.backward_start, bare.nodes[0].time, bare.nodes[0].bytes) == (
        "net.a72",
        "layer1",
        1500,
        (8,),
    )


def test_networkx() -> None:
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph([("a", "b"), ("a", "c"), ("b", "c")])
    networkx.set_node_attributes(graph, {"a": 3, "b": 2, "c": 1}, "bytes")
    networkx.set_node_attributes(graph, 7, "time")
    bare = from_tree(networkx.node_link_data(graph, edges="links"))
    assert bare.order == ("a", "b", "c")
    assert remate.solve(networkx.node_link_data(graph, edges="edges"), "100%").peak == 6


Remate = Callable[..., Any]


@pytest.mark.slow
def test_solve_on_the_command_line(tmp_path: Path) -> None:
    """In a process without torch: solve, write, check; a lie, a missing file and a budget too small by their status."""
    bare: BareInstance = random_dag(3, 12)
    (tmp_path / "i.json").write_bytes(encode(bare))
    calls = [
        ["solve", "i.json", "--budget", "85%", "--strategy", "greedy", "-o", "r.json"],
        ["solve", "i.json", "--check", "r.json"],
        ["solve", "i.json", "--check", "lie.json"],
        ["solve", "nowhere.json", "--budget", "85%"],
        ["solve", "i.json", "--budget", "1%"],
        ["solve", "i.json", "--budget", "85%", "-o", "i.json"],
        ["solve", "r.json", "--budget", "85%"],
        ["solve", "i.json", "--budget", "85%", "--strategy", "none"],
        ["solve", "i.json", "--budget", "85%", "--strategy", "rockmate"],
    ]
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'runtime')!r}]\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'transformers'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from remate.cli import main\n"
        f"calls = {calls!r}\n"
        "status = [main(argv) for argv in calls[:2]]\n"
        "text = open('r.json').read()\n"
        "open('lie.json', 'w').write(text.replace('\"peak\":', '\"peak\":1'))\n"
        "print([*status, *(main(argv) for argv in calls[2:])])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[0, 0, 1, 2, 1, 2, 1, 2, 2]", done.stderr
    assert (
        decode_result((tmp_path / "r.json").read_bytes()).peak
        <= 0.85 * decode_result((tmp_path / "r.json").read_bytes()).baseline_peak
    )
