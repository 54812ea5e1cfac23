"""The predicted step as a snapshot of torch's CUDA allocator, for torch's memory viewer (pytorch.org/memory_viz).

The structure is that of `torch.cuda.memory._snapshot()`. Addresses are invented: a free block is reused for the next
block of the same size. Parameters, buffers and inputs are not included. The frames of a block are its operation, its
instance and its part of the step, instead of a Python stack. Its category is its role in the step.
"""

from __future__ import annotations

import pickle
from typing import Any

from remate_runtime.display import curve
from remate_runtime.link import Allocation, Computation, Execution
from remate_runtime.support.plain_text import plain

from ...schedule_tools.analysis import Analysis, unnamed
from ...schedule_tools.names import owners
from ...schedule_tools.roles import Roles

BASE = 0x7F00_0000_0000  # the first invented address
_ALIGNMENT = 512
_PROTOCOL = 4  # the latest protocol that the viewer reads
_UNKNOWN = "unknown"  # the viewer fails on categories that do not include this one


def snapshot_bytes(opened: Analysis) -> bytes:
    """Return the snapshot as the viewer reads it: a pickle of plain lists, dicts, texts and integers."""
    return pickle.dumps(snapshot(opened), protocol=_PROTOCOL)


def snapshot(opened: Analysis) -> dict[str, Any]:
    """Return the snapshot. Its times are microseconds of predicted time."""
    return _Snapshot(opened).result()


class _AddressSpace:
    """Invented addresses."""

    def __init__(self) -> None:
        self.end = BASE
        self._free: dict[int, list[int]] = {}

    def take(self, nbytes: int) -> int:
        size = _rounded(nbytes)
        if self._free.get(size):
            return self._free[size].pop()
        self.end += size
        return self.end - size

    def give(self, address: int, nbytes: int) -> None:
        self._free.setdefault(_rounded(nbytes), []).append(address)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class _Snapshot:
    def __init__(self, opened: Analysis) -> None:
        self.opened, self.graph = opened, opened.graph
        self.roles, self.home = Roles(opened), owners(opened)
        self.space = _AddressSpace()
        self.events: list[dict[str, Any]] = []
        self.blocks: dict[int, dict[str, Any]] = {}  # by address: the event that allocated the block

    def result(self) -> dict[str, Any]:
        memory = curve(self.opened.linked, self.opened.timeline)
        births: dict[int, list[Allocation]] = {}
        deaths: dict[int, list[int]] = {}  # by position: addresses
        for allocation in self.opened.timeline.device.allocations:
            if allocation.nbytes:
                births.setdefault(allocation.birth, []).append(allocation)
        events = self.opened.linked.events
        for at, event in enumerate(events):
            time, index = memory.starts[at] // 1000, event.op if isinstance(event, Execution) else None
            for address in deaths.get(at, ()):
                self._free(address, time)
            for allocation in births.get(at, ()):
                address = self._allocate(
                    allocation.nbytes, time, self._frames(allocation, at, index), self._role(allocation)
                )
                if allocation.death < len(events):  # blocks of the end of the step stay allocated
                    deaths.setdefault(allocation.death, []).append(address)
            workspace = self.graph.operations[event.op].workspace if isinstance(event, Computation) else 0
            if workspace:
                self._free(self._allocate(workspace, time, self._frames(None, at, index), "workspace"), time)
        return self._done()

    def _role(self, allocation: Allocation) -> str:
        return self.roles.role(allocation, allocation.value)

    def _frames(self, allocation: Allocation | None, at: int, index: int | None) -> list[dict[str, Any]]:
        """Return the frames, innermost first: value, operation, block, part of the step."""
        backward_start = self.opened.timeline.backward_start
        part = "forward" if at < backward_start else "backward" if at > backward_start else "forward/backward boundary"
        frames = []
        if index is not None:
            op, place = self.graph.operations[index], self.home[index]
            file, _, line = op.source.rpartition("+")
            where = (file, int(line)) if file and line.isdecimal() else (op.source, 0)
            frames = [_frame(f"{op.id} ({op.op})", *where), _frame(f"{place.id} ({place.block_name})")]
        if allocation is None:
            frames.insert(0, _frame("workspace"))
        elif allocation.value is None:
            frames.insert(0, _frame(unnamed(allocation)))
        else:
            value = self.graph.values[allocation.value]
            frames.insert(0, _frame(f"{value.name} {value.type}"))
        return [*frames, _frame(part)]

    def _allocate(self, nbytes: int, time: int, frames: list[dict[str, Any]], category: str) -> int:
        address = self.space.take(nbytes)
        event = _event("alloc", address, nbytes, time, frames, category)
        self.events.append(event)
        self.blocks[address] = event
        return address

    def _free(self, address: int, time: int) -> None:
        block = self.blocks.pop(address)
        self.space.give(address, block["size"])
        for action in ("free_requested", "free_completed"):
            self.events.append(_event(action, address, block["size"], time, block["frames"], block["category"]))

    def _done(self) -> dict[str, Any]:
        total = self.space.end - BASE
        whole = _event("segment_alloc", BASE, total, 0, [], _UNKNOWN)
        blocks, at = list[dict[str, Any]](), BASE
        for address in sorted(self.blocks):
            event = self.blocks[address]
            if at < address:
                blocks.append(_block(at, address - at))
            blocks.append(_block(address, _rounded(event["size"]), event))
            at = address + blocks[-1]["size"]
        if at < BASE + total:
            blocks.append(_block(at, BASE + total - at))
        active = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        segment = {
            "device": 0,
            "address": BASE,
            "total_size": total,
            "allocated_size": active,
            "active_size": active,
            "requested_size": sum(event["size"] for event in self.blocks.values()),
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }
        return {
            "producer": "remate",
            "segments": [segment] if total else [],
            "device_traces": [[whole, *self.events] if total else []],
            "allocator_settings": {},
            "external_annotations": [],
        }


def _frame(name: str, file: str = "schedule", line: int = 0) -> dict[str, Any]:
    return {"filename": plain(file) or "schedule", "line": line, "name": plain(name)}


def _event(
    action: str, address: int, size: int, time: int, frames: list[dict[str, Any]], category: str
) -> dict[str, Any]:
    about = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time}
    return {**about, "frames": frames, "category": category}


def _block(address: int, size: int, event: dict[str, Any] | None = None) -> dict[str, Any]:
    state, requested = ("active_allocated", event["size"]) if event else ("inactive", 0)
    frames: list[Any] = event["frames"] if event else []
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}
