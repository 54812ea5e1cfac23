"""The types of a schedule file, format version 1.

Each JSON object has a struct, with fields in canonical order. `schema/README.md` specifies the meaning of the fields.
Bytes and nanoseconds are integers. A tensor type is text such as `f32[8,256,768]` (see `tensor_type`), or with named
sizes `f32[b,t,768]` (see `sized_type`); `at_size` replaces names by numbers. A text that starts with `%` refers to a
value; any other text is a literal.
"""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import ScheduleError
from .distributed import Distributed, Sharded
from .module_paths import count_paths
from .name_runs import unfolded
from .statements import FileObject, Page, Recompute, Split
from .vocabulary import Captured, Device, Dtype, Gradients, StoppedBy

FORMAT = "remate.schedule"
VERSION = 1
REVISION = 3
PAGE_FEATURE = "page"  # what a file with `page` statements requires
SPLIT_FEATURE = "split"  # the same for `split` statements
RANKS_FEATURE = "ranks"  # what a file with collectives or distributed tensors requires
FEATURES: frozenset[str] = frozenset((PAGE_FEATURE, RANKS_FEATURE, SPLIT_FEATURE))  # that this reader accepts
BASELINE = "baseline"  # the plan without recomputation: every block has it, defined or not


class Operation(FileObject, frozen=True, kw_only=True):
    """One ATen operation of a block. `out` is one type, or a list for several outputs (null: not produced)."""

    id: str
    op: str  # exact overload, `aten.add.Tensor`; a trailing `.default` is left out: `aten.addmm`
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    out: str | tuple[str | None, ...]
    workspace: int | str = 0  # bytes the operation allocates and frees beyond its outputs; text: an expression of sizes
    source: str = ""  # `file.py:Block.forward+3`: the line, counted from the first one of its function
    note: str = ""


# kinds of statements of a plan, by their key
STATEMENTS: dict[str, type[Recompute] | type[Page] | type[Split]] = {
    "recompute": Recompute,
    "page": Page,
    "split": Split,
}
if TYPE_CHECKING:
    Statement = Recompute | Page | Split
    Tensors = dict[str, str]
else:

    class Statement(ABC):  # noqa: B024
        """Any kind of statement. `decoded` decodes fields of this type by the keys of the object."""

    Statement.register(Recompute)
    Statement.register(Page)
    Statement.register(Split)

    class Tensors(ABC):  # noqa: B024
        """Types by full name. In memory it is a plain dict; in the text, repetitions are written once (see
        `name_runs`)."""

    Tensors.register(dict)


def named(statement: Statement) -> tuple[str, ...]:
    """Return the names in a statement: operations, values or instances."""
    match statement:
        case Page():
            return statement.page
        case Split():
            return statement.split
        case Recompute():
            return statement.recompute


def decoded(kind: type, value: Any) -> Any:
    """Decode a statement by its one key of STATEMENTS, or the entries of a map with runs (the `dec_hook` of msgspec).

    Raises:
        ValueError: An object of no known kind, or malformed runs.
        msgspec.ValidationError: Any other fault.
    """
    if kind is Tensors:
        return unfolded(value if isinstance(value, dict) else {"": value}, _refuse)
    kinds = [key for key in STATEMENTS if isinstance(value, dict) and key in value]
    if len(kinds) != 1:
        raise ValueError("no statement")
    return msgspec.convert(value, STATEMENTS[kinds[0]])


def _refuse(fault: ScheduleError) -> None:
    raise ValueError(fault.message)


class Constant(FileObject, frozen=True):
    """A small tensor that `forward` creates: its type and its elements in row-major order."""

    type: str
    data: tuple[Any, ...]
    note: str = ""


class Instance(FileObject, frozen=True):
    """One use of a block. `with` binds inputs of the block, and parameters that are not under `prefix`."""

    id: str
    block: str
    prefix: str | None = None  # parameter p of the block is `prefix.p` of the model; default: the full id
    bindings: dict[str, str] = msgspec.field(name="with", default_factory=dict[str, str])
    plan: str = BASELINE
    note: str = ""


class Block(FileObject, frozen=True):
    """A template: either operations (`forward`, `backward`) or instances of other blocks (`instances`)."""

    inputs: dict[str, str] = {}
    parameters: dict[str, str] = {}
    buffers: dict[str, str] = {}
    live: tuple[str, ...] = ()  # live attributes, which have the prefix, as parameters do
    constants: dict[str, Constant] = {}
    forward: tuple[Operation, ...] = ()
    backward: tuple[Operation, ...] = ()
    instances: tuple[Instance, ...] = ()
    gradients: dict[str, str] = {}  # parameter -> value that is its gradient
    updates: dict[str, str] = {}  # buffer -> value that it takes when forward ends
    plans: dict[str, tuple[Statement, ...]] = {}
    note: str = ""


class Dimension(FileObject, frozen=True, kw_only=True):
    """A named size that may differ between calls: its range, both ends included, in steps of `multiple`. planned: the
    size to which `solve` refers."""

    min: int
    max: int
    multiple: int = 1
    planned: int


class Live(FileObject, frozen=True, kw_only=True):
    """A number of the model or of its inputs that is read at every call, with the range over which the step stays the
    same.

    min and max belong to the range, above and below do not. planned: its value during capture. If that is an integer,
    integers are accepted, too.
    """

    planned: int | float
    min: int | float | None = None
    above: int | float | None = None
    max: int | float | None = None
    below: int | float | None = None


class Model(FileObject, frozen=True):
    """The live model that the schedule fits; with `at`, each of these parts of it.

    `inputs` and `outputs` are trees: a leaf tensor `{"tensor": type, "name": n, "grad": true}` (input; `"same": n` if
    forward asks whether it is the very tensor of another one) or
    `{"value": "%name", "name": n, "grad": true}` (output; `"detached": true` if it refuses a gradient),
    `{"tuple": [...]}`, `{"list": [...]}`, `{"dict": {...}}`, `{"record": "ClassName", "fields": {...}}`, a literal
    `{"literal": null|bool|int|float|str}`, or in inputs a live number `{"live": name}`. `inputs` is
    `{"args": [tree...], "kwargs": {name: tree}}`.
    """

    fingerprint: str
    name: str  # class name of the model
    torch: str
    device: Device
    training: bool
    architecture: str = ""  # of the GPU for which kernels were chosen: sm_90
    cuda: str = ""  # version of CUDA that the operators were chosen for: 13.0
    cudnn: str = ""  # version of cuDNN: 9.20.0
    captured: Captured = ""  # how the operators were chosen
    at: tuple[str, ...] = ()  # for parts of a model, their paths in it, as in a digest
    calls: int = 1  # calls of each of these modules in a step of the whole model
    mode_overrides: tuple[str, ...] = ()  # submodules whose training flag differs from `training`
    autocast: Dtype | None = None  # dtype of the ambient autocast
    parameters: Tensors = {}
    frozen: tuple[str, ...] = ()  # parameters that need no gradient
    tied: dict[str, str] = {}  # other name of a parameter or buffer -> the name used in this file
    buffers: Tensors = {}
    ranks: dict[str, int] = {}  # mesh dimensions that collectives of the step run over: their number of ranks
    coordinate: dict[str, int] = {}  # the rank of the step in these; without it, all ranks run the same step
    distributed: tuple[Distributed, ...] = ()  # parameters and buffers that each rank has a part or a copy of
    sharded: Sharded | None = None  # how FSDP2 divides the parameters
    caches: tuple[str, ...] = ()  # attributes and buffers that forward creates at its first call and keeps
    live: dict[str, Live] = {}  # attributes (by path) and inputs (by name) that are read at every call
    dims: dict[str, Dimension] = {}  # named sizes; without them, the file is for one size
    limits: dict[str, int] = {}  # expressions of named sizes, and their largest value: b*t, 4096
    untracked_sizes: bool = False  # forward takes numbers from sizes by which it may decide: each size is checked
    inputs: dict[str, Any] = {}
    fill: dict[str, bool | int | float] = {}  # inputs that may be padded, and with what
    outputs: Any = None
    gradients: dict[str, str] = {}  # parameters and inputs whose gradient no block states
    note: str = ""

    @property
    def modules(self) -> int:
        """How many modules the schedule is for."""
        return max(1, sum(map(count_paths, self.at)))


class Settings(FileObject, frozen=True):
    """What `remate plan` was asked; `remate replan` asks it again. Defaults are left out, those of `remate.plan`."""

    budget: str  # as it was written: 60%, 4GiB, or bytes
    strategy: str = "auto"
    effort: str = "normal"
    gap: float = 0.002
    time_limit: float | None = None  # seconds
    differentiate: tuple[str, ...] = ()  # outputs, where they were named
    live: tuple[str, ...] = ()  # attributes that were declared live, as they were written
    device: str = ""  # GPU that was named, cuda:h100: the step is captured for it again
    threads: int = 0  # of torch, where costs were measured on the CPU
    disk_budget: str = ""  # what a step may page to the disk; "": nothing
    host_budget: str = ""  # the same of pinned memory
    bandwidth: str = ""  # of the lanes: measured, or 50GB/s
    split: str = ""  # what may run in tiles of rows: head, the loss heads; all; "": nothing
    objective: str = ""  # of strategy poet: "" for time, or energy
    power: str = ""  # device of the energy: a72
    limit: float | None = None  # of the other figure, as a multiple of the baseline's


class Compiled(FileObject, frozen=True):
    """What was asked of the engine "compiled", which holds less than `Solve.peak`: that it keep this budget. Bytes,
    both."""

    budget: int
    peak: int | None = None  # as it was predicted; None: unknown since the plan was changed


class SolvedPart(FileObject, frozen=True):
    """A node of the tree of parts that a hierarchical strategy planned. part: its name, or the first and the last of
    equal neighbours; "" for the whole step. level: 0 for the whole step. count: of equal neighbours. operations: of
    the forward of one. plans: offered to the node above. solver: of these plans. time: ns that recomputations of its
    operations take, all neighbours together."""

    part: str
    level: int
    count: int
    operations: int
    plans: int
    solver: str
    time: int


class Solve(FileObject, frozen=True, kw_only=True):
    """What the planner promised. Derived figures; `check` computes them again and never trusts them."""

    strategy: str
    solver: str
    stopped_by: StoppedBy
    cost: str  # measured | compiled | name of a roofline device
    profile: str = ""  # hash of the measured costs: the same one, the same costs
    gradients: Gradients = "retained"  # what becomes of them when they are delivered: budget and peaks assume it
    budget: int
    peak: int
    time: int
    baseline_peak: int
    baseline_time: int
    # ns: no schedule of this graph within `budget` is faster. It counts pages if the settings have a budget of them;
    # with strategy weight-offloading, it is of schedules that only page parameters and gradients.
    lower_bound: int | None = None
    gap: float | None = None  # (time - lower_bound) / baseline_time
    compiled: Compiled | None = None
    settings: Settings | None = None
    parts: tuple[SolvedPart, ...] = ()  # of a hierarchical strategy: each node before the nodes below it
    note: str = ""


class ModuleGroup(FileObject, frozen=True):
    """Modules of one class that the capture read alike; in `objects`, what modules hold (a config), by its
    attribute. `at`: paths, runs of numbers written once: `h.[0-11].drop`; "" is the model itself. `reads`:
    attributes that were read and their values; `{"each": [...]}` lists a value per path where they differ. `hooks`:
    `forward: package.function`."""

    at: tuple[str, ...]
    kind: str = msgspec.field(name="class")
    reads: dict[str, Any] = {}
    hooks: tuple[str, ...] = ()


class Digest(FileObject, frozen=True):
    """What the capture saw of the model's code, so that a change is noticed without tracing.

    `packages`: versions of the packages that define modules. `functions`: the user's own functions that forward
    reaches, each with a hash of its syntax tree (null: its source could not be read). `values`: globals that they read.
    `patched`: functions of packages that forward reaches and that are not the packages' own. `fields`: by class, the
    attributes that forward reads of the user's objects. `classes`: the user's classes of inputs. `at_call`: a recorded
    training loop sets attributes; they are compared at the first call.
    """

    packages: dict[str, str] = {}
    functions: dict[str, str | None] = {}
    values: dict[str, Any] = {}
    patched: dict[str, Any] = {}
    fields: dict[str, tuple[str, ...]] = {}
    classes: tuple[str, ...] = ()
    modules: tuple[ModuleGroup, ...] = ()
    objects: tuple[ModuleGroup, ...] = ()
    at_call: bool = False
    note: str = ""


class Lane(FileObject, frozen=True, kw_only=True):
    """How fast values are paged to one memory and back: bytes per second in each direction; latency: ns of each
    copy."""

    out: int
    back: int
    latency: int = 0


LANES: dict[str, Lane] = {  # of a file that does not say it
    "disk": Lane(out=1_000_000_000, back=1_000_000_000, latency=100_000),
    "host": Lane(out=25_000_000_000, back=25_000_000_000, latency=10_000),
}


class Schedule(FileObject, frozen=True, kw_only=True):
    """A schedule file. `program` is the top level: instances in forward order; backward runs them in reverse."""

    schema: str = msgspec.field(name="$schema", default="")
    format: str
    version: int
    revision: int = 0
    requires: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()  # of operators beyond `operators.NAMESPACES`; running them needs a permission
    name: str
    note: str = ""
    model: Model
    solve: Solve
    blocks: dict[str, Block]
    program: tuple[Instance, ...]
    statements: tuple[Statement, ...] = ()  # the plan of the whole: full ids
    digest: Digest | None = None  # None: nothing is compared
    costs: dict[str, dict[str, int]] = {}  # block -> local id of an operation -> ns of one run; absent: 0
    tile_workspaces: dict[str, dict[str, int]] = {}  # block -> id@k -> bytes of a tile at the planned size
    lanes: dict[str, Lane] = {}  # by memory that values are paged to; absent: LANES

    def __repr__(self) -> str:
        """A few lines of figures; `msgspec.structs.asdict` and `msgspec.to_builtins` have everything."""
        from .summary import summary

        return summary(self)

    def _repr_html_(self) -> str:
        """What notebooks show: the same figures, and memory over the step."""
        import remate_runtime  # the drawing needs the simulator, whose room is above this one

        return remate_runtime.schedule_html(self)

    @property
    def peak_bytes(self) -> int:
        """Predicted peak: bytes beyond parameters, buffers, inputs and optimizer state."""
        return self.solve.peak

    @property
    def time_ns(self) -> int:
        return self.solve.time

    @property
    def budget_bytes(self) -> int:
        return self.solve.budget

    def budget_of(self, engine: str) -> int:
        """Bytes that a step which this engine executes may hold."""
        requested = self.solve.compiled
        return self.solve.budget if requested is None or engine in ("eager", "arena") else requested.budget

    @property
    def baseline_peak_bytes(self) -> int:
        return self.solve.baseline_peak

    @property
    def baseline_time_ns(self) -> int:
        return self.solve.baseline_time

    @property
    def lower_bound_ns(self) -> int | None:
        return self.solve.lower_bound

    def save(self, path: str) -> None:
        """Write the canonical text to `path`, atomically (temporary file in the same folder, then rename)."""
        from .writer import save

        save(self, path)
