"""A second simulator, written from `schema/README.md` and `schema/operators-1.json` alone: it imports nothing of
remate.

It takes a valid file and gives what `schema/corpus/expected` states: events, peak and time. It checks nothing and
hurries nowhere; where it and the linker differ, the page is at fault, or one of the two.
"""

from __future__ import annotations

from math import prod

from .independent_deliveries import deliveries_of
from .independent_pages import ACCOUNTS, Lanes, leaving, paged_parameters, resident, trips
from .independent_shards import Delivered, Shards
from .independent_step import TABLES, Json, Name, Op, Step


class Simulation:
    """Events of a step, with the bytes in each memory during them."""

    def __init__(self, step: Step, assumed: str) -> None:
        self.step, self.types, self.assumed = step, step.types, assumed
        self.device = step.model["device"]
        self.base = {w: op.reads[0] for op in step.ops if op.view for w in op.writes}
        self.maker = {w: i for i, op in enumerate(step.ops) for w in op.writes}
        self.own = [*self.maker, *step.tangents, *step.updates]  # values that may have storages of the step's
        order = [name for name in step.sources if name in step.gradients]
        self.of = order
        self.gradients = [step.gradients[name] for name in order]
        self.buffers = [name for name in step.sources if name in step.updates]
        self._order()
        self._liveness()
        self._storages()

    def root(self, value: str) -> str:
        while value in self.base:
            value = self.base[value]
        return value

    # What runs, in which order: views on demand, the forward/backward boundary as None

    def _order(self) -> None:
        step = self.step
        self.trips = trips(step, self.root, self.maker)
        self.number = 0  # of the next thing that executes, views that are made on demand apart
        self.order: list[int | tuple[str, str, str, int] | None] = []
        self.made: dict[str, int] = {}  # storage owner -> when it was made last
        self.shown: dict[str, int] = {}  # view -> which making of its owner it shows
        touched: dict[str, int] = {}
        for index, op in enumerate(step.ops):
            if index >= step.backward_start and not op.view:
                touched.update((self.root(value), index) for value in (*op.reads, *op.writes))
        for index, op in enumerate(step.ops):
            if index == step.backward_start:
                self._backward_start_order()
            for again in step.plan.get(index, []):
                self._run_order(again)
            if not op.view:
                self._run_order(index)
            for gradient in self.gradients:
                if touched.get(self.root(gradient)) == index:
                    self._view_order(gradient)
        if step.backward_start == len(step.ops):
            self._backward_start_order()
        for gradient in self.gradients:
            self._view_order(gradient)

    def _page_order(self) -> None:
        for kind, column in (("page_out", 2), ("page_gone", 3), ("page_back", 4), ("page_ready", 5)):
            for trip, about in enumerate(self.trips):
                if about[column] == self.number:
                    self.order.append((kind, about[0], about[1], trip))
                    if kind == "page_back" and about[0] not in self.step.parameters:
                        self.made[about[0]] = len(self.order)
        self.number += 1

    def _backward_start_order(self) -> None:
        self._page_order()
        for value in (*self.step.outputs, *(self.step.updates[b] for b in self.buffers)):
            self._view_order(value)
        self.order.append(None)
        self.made.update(dict.fromkeys(self.buffers, len(self.order)))

    def _run_order(self, index: int) -> None:
        self._page_order()
        for value in self.step.ops[index].reads:
            self._view_order(value)
        self.order.append(index)
        self.made.update(dict.fromkeys(self.step.ops[index].writes, len(self.order)))

    def _view_order(self, value: str) -> None:
        now, chain = self.made.get(self.root(value), 0), []
        while value in self.base and self.shown.get(value) != now:
            chain.append(self.maker[value])
            value = self.base[value]
        for index in chain[::-1]:
            self.order.append(index)
            self.shown.update(dict.fromkeys(self.step.ops[index].writes, now))

    # When a slot is emptied

    def _liveness(self) -> None:
        live = set(self.gradients)
        self.free: list[list[str]] = [[] for _ in self.order]
        for at in range(len(self.order))[::-1]:
            index = self.order[at]
            if index is None:
                self.preserved = live & set(self.buffers)
                reads = {*self.step.outputs, *self.step.updates.values(), *self.buffers}
                self.free[at] = sorted(reads - live)
            elif isinstance(index, tuple):
                own = {index[1]} - set(self.step.parameters)  # those keep their slots
                reads, writes = (set(), own) if index[0] == "page_back" else (own, set())
                self.free[at] = sorted(reads - live)
                live -= writes
            else:
                reads, writes = set(self.step.ops[index].reads), set(self.step.ops[index].writes)
                self.free[at] = sorted((reads - live) | (writes - live))
                live -= writes
            live |= reads

    # Storages

    def _storages(self) -> None:
        self.events: list[Json] = []
        self.held: list[dict[str, int]] = []  # by event
        self.slots: dict[str, int] = {}  # value -> storage
        self.stores: dict[int, tuple[str, int, str]] = {}  # storage -> value it was made for, bytes, memory
        self.pins: dict[int, int] = {}  # storage -> holders outside the step
        self.states: dict[int, tuple[int, str]] = {}  # random op that is recomputed -> bytes, memory of its saved state
        self.count, self.time, self.stall = 0, 0, 0
        self.lanes = Lanes(self.step)
        recomputes = {
            i for k, i in enumerate(self.order) if isinstance(i, int) and i in self.order[:k] and self._random(i)
        }
        last = {i: k for k, i in enumerate(self.order) if i is not None}
        ran: set[int] = set()
        deliveries = deliveries_of(self)
        out = leaving(self.step, self.order, self.root, self.trips, deliveries, self.assumed == "consumed")
        sizes = {name: self._nbytes(name) for name in self.step.parameters if not self._on_host(name)}
        self.resident, self.away = resident(sizes, self.trips), paged_parameters(sizes, self.trips)
        self.handed = {value for moves in out.values() for value, *_ in moves if value not in self.step.parameters}
        self.least: list[dict[str, int]] = []  # by event, the same where delivered gradients are gone
        self.bare: list[int] = []  # by event, bytes of the device without gradients that it or an earlier one delivers
        self.lasting: list[int] = []  # the same of what was there before the event
        self.before: set[int] = set()
        self.delivered: list[Delivered] = []
        self.gone: dict[int, int] = {}  # storage of a gradient -> the event that delivers it
        for at, index in enumerate(self.order):
            if index is None:
                self._backward_start(self.free[at])
                self._deliver(deliveries.get(at, []))
                continue
            if isinstance(index, tuple):
                self._page(*index)
            elif self.step.ops[index].view:
                self._view(index)
            else:
                self._run(index, self.free[at], index in ran, index in recomputes, last[index] == at)
            ran.add(index)  # type: ignore[arg-type]
            freed = [v for v in self.free[at] if v in self.slots]
            self._drop(freed)
            if freed:
                self.events.append({"free": freed})
                self.held.append({})
                self.least.append({})
                self.bare.append(0)
                self.lasting.append(0)
            late = self.step.parameters if self.assumed == "consumed" else ()
            self._leave([page for page in out.get(at, []) if page[0] not in late])
            self._deliver(deliveries.get(at, []))
            self._leave([page for page in out.get(at, []) if page[0] in late])

    def _leave(self, moves: list[tuple[str, str, int]]) -> None:
        for value, memory, trip in moves:
            for kind in ("page_gone",) if value in self.step.parameters else ("page_out", "page_gone"):
                self._page(kind, value, memory, trip)
            if value not in self.step.parameters:
                del self.stores[self.slots[value]]

    def _deliver(self, sources: list[str]) -> None:
        if sources:
            for source in sources:
                owner = self.root(self.step.gradients[source])
                sharing = [s for s in self.of if self.root(self.step.gradients[s]) == owner]
                computed = self.maker.get(owner, -1) >= self.step.backward_start
                if self.step.gradients[source] in self.handed:
                    continue
                if computed and all(s in self.step.parameters for s in sharing):
                    store = self.slots[self.step.gradients[source]]
                    if store not in self.gone:
                        self.delivered.append(Delivered(source, self.stores[store][1], len(self.events)))
                    self.gone[store] = len(self.events)
                if self.maker.get(owner) is None or sharing[0] != source:
                    self._copy(self.step.gradients[source])
                    if source in self.step.parameters:
                        self.gone[self.count] = len(self.events)
                        self.delivered.append(Delivered(source, self.stores[self.count][1], len(self.events)))
            self._emit({"deliver": sources})

    def _copy(self, value: str) -> None:
        about = self.types[value]
        step = TABLES["devices"]["cpu" if about.cpu else self.device]["allocation"]
        nbytes = about._replace(strides=None).nbytes
        self.count += 1
        self.stores[self.count] = value, -(-nbytes // step) * step, self._host if about.cpu else "device"
        self.pins[self.count] = 1

    def _page(self, kind: str, value: str, memory: str, trip: int) -> None:
        nbytes = self._nbytes(value)
        if kind == "page_back" and value in self.step.parameters:
            self.resident[value] = nbytes
        elif kind == "page_out":
            self.away[ACCOUNTS[memory]] = self.away.get(ACCOUNTS[memory], 0) + nbytes
        elif kind == "page_back":
            self._new(value)
        waits = self.lanes.wait(kind, memory, trip, nbytes, self.time)
        self.time += waits
        self.stall += waits
        self._emit({kind: value, "to": memory})
        if kind == "page_gone":
            self.resident.pop(value, None)

    def _random(self, index: int) -> bool:
        return self.step.ops[index].line["op"] in TABLES["random"]

    def _run(self, index: int, free: list[str], again: bool, replayed: bool, last: bool) -> None:
        op, event = self.step.ops[index], {}
        target = self._overwritten(op, free)
        event[("run", "recompute")[again]] = op.id
        for value in op.writes:
            if target is None:
                self._new(value)
            else:
                self.slots[value] = self.slots[target]
                event["over"] = target
        extra: dict[str, int] = {}
        on_host = bool(op.writes) and all(self.types[self.root(v)].cpu for v in op.writes)
        memory = "host" if on_host and self.device != "cpu" else "device"
        extra[memory] = op.line.get("workspace", 0)
        if replayed:
            kind = "cpu" if all(self.types[v].cpu for v in op.writes) else self.device
            state = TABLES["devices"][kind]["generator_state"], self._host
            if again:
                extra[state[1]] = extra.get(state[1], 0) + state[0]
            else:
                self.states[index] = state
        self.time += op.ns
        self._emit(event, extra)
        if again and last:
            self.states.pop(index, None)

    @property
    def _host(self) -> str:
        return "device" if self.device == "cpu" else "host"

    def _view(self, index: int) -> None:
        op = self.step.ops[index]
        for value in op.writes:
            if op.reads[0] in self.slots:
                self.slots[value] = self.slots[op.reads[0]]
        self._emit({"view": op.id})

    def _backward_start(self, free: list[str]) -> None:
        self.pins = {self.slots[v]: 1 for v in self.step.outputs if v in self.slots}
        for buffer in self.buffers:
            event: Json = {"update": buffer, "to": self.step.updates[buffer]}
            if buffer in self.preserved:
                event["preserves"] = True
                self.pins[self._new(buffer)] = 0
            self._emit(event)
        freed = [v for v in free if v in self.slots]
        self._drop(freed)
        for tangent in self.step.tangents:
            self.pins[self._new(tangent)] = int(prod(self.types[tangent].shape) == 1)
        self._emit({"backward_start": freed})
        tangents = sum(self._nbytes(value) for value in self.step.tangents if not self._on_host(value))
        self.kept = self.held[-1]["device"] - tangents

    def _on_host(self, value: str) -> bool:
        return self.device != "cpu" and self.types[self.root(value)].cpu

    def beside(self) -> tuple[int, int]:
        """Bytes of the other calls of a part: between forward and backward, and of gradients of parameters."""
        model, modules = self.step.model, 0
        for path in model.get("at", []):
            runs = [part[1:-1].split("-") for part in path.split(".") if part.startswith("[")]
            modules += prod(int(last) - int(first) + 1 for first, last in runs)
        calls = max(1, modules) * model.get("calls", 1)
        owners = {self.root(g) for s, g in self.step.gradients.items() if s in self.step.parameters}
        gradients = sum(self._nbytes(g) for g in owners if g in self.maker and not self._on_host(g))
        others = modules if model.get("calls", 1) > 1 else modules - 1
        return (calls - 1) * self.kept, max(0, others) * gradients

    def _new(self, value: str) -> int:
        self.count += 1
        memory = self._host if self.types[self.root(value)].cpu else "device"
        self.stores[self.count] = value, self._nbytes(value), memory
        self.slots[value] = self.count
        return self.count

    def _nbytes(self, value: str) -> int:
        root = self.types[self.root(value)]
        step = TABLES["devices"]["cpu" if root.cpu else self.device]["allocation"]
        return -(-root.nbytes // step) * step

    def _drop(self, values: list[str]) -> None:
        for value in values:
            store = self.slots.pop(value)
            if store not in self.slots.values() and not self.pins.get(store):
                del self.stores[store]

    def _overwritten(self, op: Op, free: list[str]) -> str | None:
        form = TABLES["in_place"].get(op.line["op"])
        if form is None or isinstance(op.line["out"], list):
            return None
        for position in form["positions"]:
            if position < len(op.args) and isinstance(op.args[position], Name):
                both = len(op.args) == 2 and isinstance(op.args[0], Name) and not op.line.get("kwargs")
                if (position == 0 or both) and self._dies(op, str(op.args[position]), free):
                    return str(op.args[position])
        return None

    def _dies(self, op: Op, value: str, free: list[str]) -> bool:
        store, result = self.slots.get(value), op.writes[0]
        if store is None or store in self.pins or self.types[value] != self.types[result]:
            return False
        owner = self.types[self.stores[store][0]]
        if owner.nbytes != self.types[result].nbytes or sum(a == value for a in op.args if isinstance(a, Name)) > 1:
            return False
        if any(self.slots.get(other) == store for other in op.reads if other != value):
            return False
        return all(slot in free for slot, held in self.slots.items() if held == store)

    def _emit(self, event: Json, extra: Json | None = None) -> None:
        held = dict.fromkeys(sorted({m for _, _, m in self.stores.values()} | {"device"}), 0)
        held["device"] += sum(self.resident.values())
        for nbytes, memory in (*((b, m) for _, b, m in self.stores.values()), *self.states.values()):
            held[memory] = held.get(memory, 0) + nbytes
        for memory, nbytes in (extra or {}).items():
            held[memory] = held.get(memory, 0) + nbytes
        held.update(self.away)
        gone = dict.fromkeys(held, 0)
        for store, at in self.gone.items():
            if at < len(self.events):
                gone[self.stores[store][2]] += self.stores[store][1]
        less = {memory: nbytes - gone[memory] for memory, nbytes in held.items()}
        self.held.append(held)
        self.least.append(less)
        ours = {store: b for store, (_, b, m) in self.stores.items() if m == "device"}
        passed = sum(b for store, b in ours.items() if self.gone.get(store, len(self.events) + 1) <= len(self.events))
        self.bare.append(held["device"] - passed)
        new = sum(b for store, b in ours.items() if store not in self.before and store not in self.gone)
        self.lasting.append(self.bare[-1] - new - (extra or {}).get("device", 0))
        self.before = set(self.stores)
        said = held if self.assumed == "retained" else less
        self.events.append(
            {**event, **{memory: nbytes for memory, nbytes in said.items() if nbytes or memory == "device"}}
        )


def _shard(step: Simulation) -> None:
    shards = Shards(step.step, step.root)
    for kind, accounts in (("retained", step.held), ("consumed", step.least)):
        bytes_at = shards.device(step.events, step.bare, step.lasting, step.delivered, kind)
        for at, nbytes in enumerate(bytes_at):
            if "free" not in step.events[at]:
                accounts[at]["device"] = nbytes
                if (kind == "retained") == (step.assumed == "retained"):
                    step.events[at]["device"] = nbytes


def simulate(file: Json) -> Json:
    """Events, peak of each memory in bytes, and time in ns of a valid file."""
    step = Simulation(Step(file), file["solve"].get("gradients", "retained"))
    if "sharded" in step.step.model:
        _shard(step)
    kept, summed = step.beside()

    def peak(kind: str, memory: str) -> int:
        return max((held.get(memory, 0) for held in (step.held if kind == "retained" else step.least)), default=0)

    def of_all(kind: str) -> int:
        return peak(kind, "device") + (max(kept, summed) if kind == "retained" else kept)

    host = peak(step.assumed, "host")
    paged = {to: step.away[name] for to, name in ACCOUNTS.items() if name in step.away}
    return {
        "peak": of_all(step.assumed),
        **({"host_peak": host} if host else {}),
        "peaks": {kind: of_all(kind) for kind in ("retained", "accumulated", "consumed")},
        **({"paged": paged, "stall": step.stall} if paged else {}),
        "time": step.time,
        "events": step.events,
    }
