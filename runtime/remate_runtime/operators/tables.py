"""What remate must know about operators without loading torch: `schema/operators-1.json`.

`tools/operator_tables.py` generates the file from torch's own schemas, and a second implementation reads it as well.
Names are as in a schedule file: `namespace.name` or `namespace.name.overload`, without `.default`. `bind` checks the
tables against the live operators, so that a different torch cannot corrupt a gradient.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

_NAME = "operators-1.json"


class InPlace(msgspec.Struct, frozen=True):
    """The in-place form of an operator.

    Attributes:
        op: The overload that writes over an argument.
        positions: Arguments that may be overwritten; two if the operator is commutative.
        through: The view of the first argument that `op` writes the second one into. It takes the following arguments.
    """

    op: str
    positions: tuple[int, ...]
    through: str | None = None


class PairedOperator(msgspec.Struct, frozen=True):
    """The unchecked assumptions of an operator's kernel. It runs only as the backward of an operator of the file.

    Without `outputs` the forward operator need not be in the file: what it would return counts. `grad` is the first
    argument, whose name differs between versions of torch.

    Attributes:
        by: The forward operators, each with further literals: of this operator if there are `outputs`, else its own.
        outputs: Arguments that are this output of one of them.
        same: Arguments that both have.
        like: Arguments with the shape of this output.
        renamed: Arguments that have a different name there.
        sizes: Literals that are a size of an argument.
        last: Lists that are the last sizes of an argument.
        empty: Whether the kernel is safe where tensors of the right shapes have no elements.
    """

    by: dict[str, dict[str, bool | float | None]]
    same: tuple[str, ...]
    outputs: dict[str, int] = {}
    like: dict[str, int] = {}
    renamed: dict[str, str] = {}
    sizes: dict[str, tuple[str, int]] = {}
    last: dict[str, tuple[str, int]] = {}
    empty: bool = False


class DeviceFacts(msgspec.Struct, frozen=True):
    """Facts about a device, in bytes.

    Attributes:
        allocation: The allocator rounds requests up to a multiple of this.
        generator_state: Size of the tensor with a generator's state, in host memory.
    """

    allocation: int
    generator_state: int


class Tables(msgspec.Struct, frozen=True):
    """The contents of the file. A list of exceptions gives for each operator why the tables differ from torch's
    schema."""

    format: str
    version: int
    torch: str
    devices: dict[str, DeviceFacts]
    namespaces: frozenset[str]
    operators: frozenset[str]
    permission: dict[str, str]
    paired: dict[str, PairedOperator]
    literals: dict[str, dict[str, bool]]
    views: frozenset[str]
    random: frozenset[str]
    in_place: dict[str, InPlace]
    copied: frozenset[str]
    refused: dict[str, str]
    exceptions: dict[str, dict[str, str]]


def path(name: str = _NAME) -> Path:
    """Return the path of a file of tables: beside this module in an installed wheel, in `schema/` of the source tree.

    Raises:
        FileNotFoundError: The installation is damaged.
    """
    module = Path(__file__).resolve()
    for candidate in (module.with_name(name), module.parents[3] / "schema" / name):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{name} is missing from the installation of remate_runtime; install it again")


TABLES = msgspec.json.decode(path().read_bytes(), type=Tables)
DEVICES = TABLES.devices
# Namespaces whose listed operators run without permission. A file names every other one in `namespaces`, and
# `remate_runtime.apply(..., namespaces=(...))` permits it.
NAMESPACES = TABLES.namespaces
# The operators of these namespaces that a file may name: exactly those that capture can emit.
OPERATORS = TABLES.operators
# Operators that a file may name only if the caller of `apply` permits them by name, with the reason.
PERMISSION = TABLES.permission
# Operators that need the same permission unless a forward operator of the file produced their arguments.
PAIRED = TABLES.paired
# Literals of an operator that need no permission.
LITERALS = TABLES.literals
# Operators with effects beyond their arguments: on files, processes, the generator, autograd's state.
REFUSED = TABLES.refused
VIEWS = TABLES.views
RANDOM = TABLES.random
# torch tags these as random, but they draw nothing: without dropout, or with the random state as an argument.
NOT_RANDOM = frozenset(TABLES.exceptions["not_random"])
# The storage of these results also contains intermediate results, which would stay allocated.
COPIED = TABLES.copied
IN_PLACE = TABLES.in_place  # by operator


def namespace(op: str) -> str:
    return op.partition(".")[0]


def permission(op: str) -> str:
    """Return what `namespaces` of a file must list for this operator, and `apply` must permit; "" for nothing.

    It is the namespace of a library, or the operator itself.
    """
    if namespace(op) not in NAMESPACES:
        return namespace(op)
    return op if op in PERMISSION else ""


def permissible(name: str) -> bool:
    """Return whether `namespaces` of a file may list this: a library's namespace, or a listed operator."""
    return name not in NAMESPACES if "." not in name else name in OPERATORS or name in PERMISSION


def refusal(op: str) -> str:
    """Return why no file may name an operator even with a permission; "" if it may. Ignores libraries' operators."""
    if namespace(op) not in NAMESPACES or op in OPERATORS or op in PERMISSION:
        return ""
    why = REFUSED.get(".".join(op.split(".")[:2])) or TABLES.exceptions["no_views"].get(op)
    return f"{op!r} is not among the operators that a file may name{f' ({why})' if why else ''}"
