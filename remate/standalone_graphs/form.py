"""The file of a bare instance (`schema/instance-1.schema.json`): its types and rules.

Files are untrusted. Sizes are limited, and every fault is reported with its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from remate_runtime.errors import ScheduleError
from remate_runtime.format import locate, scan
from remate_runtime.support.plain_text import plain

from ..errors import InstanceError

FORMAT, VERSION = "remate.instance", 1
MAX_FILE_BYTES = 16 << 20
MAX_NODES = 50_000
MAX_OUTPUTS = 1 << 10  # of a node
MAX_EDGES = 1_000_000
MAX_NAME = 512
MAX_TOTAL = 1 << 60  # of all bytes, and of all times: sums fit into 64 bits
_NAME = re.compile(rf"[^:\x00-\x1f\x7f]{{1,{MAX_NAME}}}")
_PATH = re.compile(r"[.\[]([^.\[\]]+)\]?")
Decoded = TypeVar("Decoded")


class BareNode(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An operation.

    Attributes:
        id: Its name, without `:`.
        time: Time of a run, in whole units of any kind (ns if measured).
        bytes: Bytes of each output.
        workspace: Bytes that a run uses beside its outputs.
        recomputable: Whether it may run more than once.
        in_place: Inputs whose bytes its only output may take at their last read, in order of preference: one input, or
            two if the node reads nothing else.
    """

    id: str
    time: int
    bytes: tuple[int, ...]
    workspace: int = 0
    recomputable: bool = True
    in_place: tuple[str, ...] = ()


class BareInstance(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A directed acyclic graph. Output 0 of a node is named by the node's id, output k by `id:k`.

    Attributes:
        format: Always `remate.instance`.
        version: Version of the format.
        nodes: The operations.
        edges: (output, node that reads it).
        name: Name of the instance.
        order: Ids of all nodes in order of execution; by default as listed.
        backward_start: Id of the first node of the backward, which lasts until the end of the order.
        pins: Outputs that must exist at the end.
    """

    format: str
    version: int
    nodes: tuple[BareNode, ...]
    edges: tuple[tuple[str, str], ...] = ()
    name: str = ""
    order: tuple[str, ...] = ()
    backward_start: str | None = None
    pins: tuple[str, ...] = ()


def encode(instance: BareInstance) -> bytes:
    """Return the file's bytes: a line for each node and edge."""
    lines = [f'"format":{_json(instance.format)},\n"version":{instance.version}']
    if instance.name:
        lines.append(f'"name":{_json(instance.name)}')
    lines += [_block("nodes", instance.nodes), _block("edges", instance.edges)]
    for key in ("order", "backward_start", "pins"):
        if value := getattr(instance, key):
            lines.append(f'"{key}":{_json(value)}')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _block(key: str, items: Iterable[object]) -> str:
    return f'"{key}":[\n' + ",\n".join(map(_json, items)) + "\n]"


def decode(data: bytes) -> BareInstance:
    """Return the instance in a file of this form. Raises InstanceError."""
    tree_check(data)
    return checked(typed(data, BareInstance))


def tree_check(data: bytes) -> None:
    """Raise InstanceError if the text is not JSON, is too large or too deep, or repeats a key."""
    if len(data) > MAX_FILE_BYTES:
        raise InstanceError(
            f"the file has more than {MAX_FILE_BYTES >> 20} MiB\n  hint: split the graph, or merge nodes"
        )
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise InstanceError(f"byte {error.start} is not UTF-8\n  hint: save the file as UTF-8") from None
    faults = scan(data)
    if faults:
        raise InstanceError(str(faults[0]))


def typed(data: bytes, kind: type[Decoded]) -> Decoded:
    """Convert JSON to a type. Raises InstanceError with the line of the first fault."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        where = "".join(f"/{part}" for part in _PATH.findall(path))
        raise InstanceError(str(locate(data, [ScheduleError("R012", message, where)])[0])) from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InstanceError(f"the file is not JSON: {plain(str(error))}") from None


def checked(instance: BareInstance) -> BareInstance:
    """Return the instance with a legal order. Raises InstanceError for faults."""
    _header(instance)
    nodes = {node.id: node for node in instance.nodes}
    _nodes(instance, nodes)
    reads = inputs(instance)
    for node in instance.nodes:
        _in_place(node, reads[node.id], nodes)
    order = instance.order or _ordered([node.id for node in instance.nodes], reads)
    _order(order, nodes, reads)
    _ends(instance, nodes)
    return msgspec.structs.replace(instance, order=order)


def inputs(instance: BareInstance) -> dict[str, list[str]]:
    """Return for each node the outputs that it reads, in the order of the edges."""
    outputs_read: dict[str, list[str]] = {node.id: [] for node in instance.nodes}
    for output, reader in instance.edges:
        if reader not in outputs_read:
            raise InstanceError(f"an edge leads to {reader!r}, which is not a node\n  hint: edges end at ids of nodes")
        outputs_read[reader].append(output)
    return {reader: list(dict.fromkeys(read)) for reader, read in outputs_read.items()}


def node_of(output: str) -> str:
    """Return the id of the node that produces an output."""
    return output.partition(":")[0]


def size_of(output: str, nodes: dict[str, BareNode], what: str) -> int:
    """Return the bytes of an output.

    Args:
        output: The name of the output.
        nodes: The nodes, by id.
        what: What names the output, for the error.

    Raises:
        InstanceError: No node has this output.
    """
    name, colon, number = output.partition(":")
    at = 0 if not colon else int(number) if re.fullmatch("[1-9][0-9]{0,4}", number) else -1
    if name not in nodes or not 0 <= at < len(nodes[name].bytes):
        raise InstanceError(
            f"{what} names {output!r}, which no node produces\n"
            "  hint: `id` is the first output of a node, `id:1` the second one"
        )
    return nodes[name].bytes[at]


def _header(given: BareInstance) -> None:
    if given.format != FORMAT:
        raise InstanceError(f"`format` is {given.format[:80]!r}, not {FORMAT!r}")
    if given.version != VERSION:
        raise InstanceError(f"version {given.version}: this remate reads version {VERSION}\n  hint: update remate")
    for what, count, most in (("nodes", len(given.nodes), MAX_NODES), ("edges", len(given.edges), MAX_EDGES)):
        if count > most:
            raise InstanceError(f"{count} {what}: more than {most}")
    if not given.nodes:
        raise InstanceError("the instance has no nodes")


def _nodes(given: BareInstance, nodes: dict[str, BareNode]) -> None:
    if len(nodes) < len(given.nodes):
        seen: set[str] = set()
        twice = next(node.id for node in given.nodes if node.id in seen or seen.add(node.id))
        raise InstanceError(f"two nodes have the id {twice[:80]!r}\n  hint: give each node an id of its own")
    for node in given.nodes:
        if not _NAME.fullmatch(node.id):
            raise InstanceError(
                f"the id {node.id[:80]!r} is not allowed\n  hint: use 1 to {MAX_NAME} printable characters without `:`"
            )
        if len(node.bytes) > MAX_OUTPUTS:
            raise InstanceError(f"{node.id!r} has {len(node.bytes)} outputs: more than {MAX_OUTPUTS}")
        if min(node.time, node.workspace, *node.bytes) < 0:
            raise InstanceError(f"{node.id!r}: time, bytes and workspace must be at least 0")
    total = sum(sum(node.bytes) + node.workspace for node in given.nodes), sum(node.time for node in given.nodes)
    if max(total) > MAX_TOTAL:
        raise InstanceError("the sum of all bytes, or of all times, is over 2^60\n  hint: choose a larger unit")


def _in_place(node: BareNode, reads: list[str], nodes: dict[str, BareNode]) -> None:
    for output in reads:
        size_of(output, nodes, f"an edge to {node.id!r}")
    if not node.in_place:
        return
    if len(node.bytes) != 1 or len(node.in_place) > 2 or (len(node.in_place) == 2 and len(reads) != 2):
        raise InstanceError(
            f"{node.id!r}: `in_place` needs a node with one output. It names one input, or two if the node reads only "
            "these"
        )
    for output in node.in_place:
        if output not in reads or size_of(output, nodes, f"`in_place` of {node.id!r}") != node.bytes[0]:
            raise InstanceError(
                f"{node.id!r} cannot take the bytes of {output!r}: it must read this output, and its own output must "
                "have as many bytes"
            )


def _ordered(listed: list[str], reads: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the nodes in the order listed, but each after the nodes that it reads from."""
    ordered: dict[str, None] = {}
    for root in listed:
        stack = [(root, iter(reads[root]))]
        open_ = {root}
        while stack:
            name, rest = stack[-1]
            following = next((p for p in map(node_of, rest) if p not in ordered), None)
            if following is None:
                ordered.setdefault(name)
                open_.discard(name)
                stack.pop()
            elif following in open_:
                raise InstanceError(
                    f"{following!r} reads its own output, directly or through other nodes\n  hint: remove the cycle"
                )
            else:
                open_.add(following)
                stack.append((following, iter(reads[following])))
    return tuple(ordered)


def _order(order: tuple[str, ...], nodes: dict[str, BareNode], reads: dict[str, list[str]]) -> None:
    at = {name: n for n, name in enumerate(order)}
    if len(at) < len(order) or at.keys() != nodes.keys():
        raise InstanceError("`order` must name every node once")
    for name in order:
        late = next((output for output in reads[name] if at[node_of(output)] >= at[name]), None)
        if late is not None:
            raise InstanceError(f"`order`: {name!r} comes before the node of {late!r}, which it reads")


def _ends(given: BareInstance, nodes: dict[str, BareNode]) -> None:
    if given.backward_start is not None and given.backward_start not in nodes:
        raise InstanceError(f"`backward_start` names {given.backward_start[:80]!r}, which is not a node")
    for output in given.pins:
        size_of(output, nodes, "`pins`")
