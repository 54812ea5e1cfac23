"""What remate must know of operators without loading torch: `schema/operators-1.json`, which `tools/operator_tables.py`
takes from torch's own schemas, and which a second implementation reads as well.

Names are as in a schedule file: `namespace.name` or `namespace.name.overload`, `.default` left out. `bind` checks the
tables against the live operators, so that a torch that differs cannot corrupt a gradient.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

_NAME = "operators-1.json"


class InPlace(msgspec.Struct, frozen=True):
    """op: the overload that writes over an argument. positions: arguments that may be overwritten; two: commutative.
    through: the view of the first argument that `op` writes the second one into; it takes the arguments behind
    these."""

    op: str
    positions: tuple[int, ...]
    through: str | None = None


class PairedOperator(msgspec.Struct, frozen=True):
    """What an operator's kernel takes on trust, so that it runs only as the backward of an operator of the file.

    by: the forward operators, each with further literals: of this operator where there are `outputs`, else its own.
    outputs: arguments that are this output of one of them. same: arguments that it has too. like: arguments of the
    shape of this output. renamed: arguments by other names there. sizes: literals that are a size of an argument. last:
    lists that are the last sizes of an argument. Without `outputs` the forward operator need not be in the file: what
    it would make counts. `grad` is the first argument, which versions of torch name differently.
    """

    by: dict[str, dict[str, bool | float | None]]
    same: tuple[str, ...]
    outputs: dict[str, int] = {}
    like: dict[str, int] = {}
    renamed: dict[str, str] = {}
    sizes: dict[str, tuple[str, int]] = {}
    last: dict[str, tuple[str, int]] = {}


class DeviceFacts(msgspec.Struct, frozen=True):
    """Bytes. allocation: the allocator rounds requests up to a multiple of it. generator_state: of the tensor that
    holds a generator's state, in the memory of the host."""

    allocation: int
    generator_state: int


class Tables(msgspec.Struct, frozen=True):
    """The file. A list of exceptions gives for each operator why the tables differ from what torch's schema says."""

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


def path() -> Path:
    """The file: beside this module in an installed wheel, in `schema/` of the source tree.

    Raises FileNotFoundError if the installation is damaged.
    """
    here = Path(__file__).resolve()
    for found in (here.with_name(_NAME), here.parents[3] / "schema" / _NAME):
        if found.is_file():
            return found
    raise FileNotFoundError(f"{_NAME} is missing from the installation of remate_runtime; install it again")


TABLES = msgspec.json.decode(path().read_bytes(), type=Tables)
DEVICES = TABLES.devices
# Namespaces whose operators run without being requested, as far as they are listed. A file names every other one in
# `namespaces`, and `remate_runtime.apply(..., namespaces=(...))` permits it.
NAMESPACES = TABLES.namespaces
# The operators of these namespaces that a file may name: those that capture can emit, and no other.
OPERATORS = TABLES.operators
# Those that it may name only where whoever applies it permits the operator by name; why.
PERMISSION = TABLES.permission
# Those that need the same permission unless their arguments are what a forward operator of the file made.
PAIRED = TABLES.paired
# Literals that an operator may have without that permission.
LITERALS = TABLES.literals
# Operators that reach beyond their arguments: files, processes, the generator, autograd's state.
REFUSED = TABLES.refused
VIEWS = TABLES.views
RANDOM = TABLES.random
# Tagged as random by torch, but they draw nothing: without dropout, or with the random state as an argument.
NOT_RANDOM = frozenset(TABLES.exceptions["not_random"])
# The storage that these return holds more than the result: what they computed on the way to it, which would stay
# allocated.
COPIED = TABLES.copied
IN_PLACE = TABLES.in_place  # by operator


def namespace(op: str) -> str:
    return op.partition(".")[0]


def permission(op: str) -> str:
    """What a file lists in `namespaces` to name this operator, and `apply` must permit: the namespace of a library, the
    operator itself, or nothing ("")."""
    if namespace(op) not in NAMESPACES:
        return namespace(op)
    return op if op in PERMISSION else ""


def permissible(name: str) -> bool:
    """Whether `namespaces` of a file may list this: a library's namespace, or a listed operator."""
    return name not in NAMESPACES if "." not in name else name in OPERATORS or name in PERMISSION


def refusal(op: str) -> str:
    """Why no file may name an operator, whatever is permitted; "" if it may. Says nothing of libraries' operators."""
    if namespace(op) not in NAMESPACES or op in OPERATORS or op in PERMISSION:
        return ""
    why = REFUSED.get(".".join(op.split(".")[:2])) or TABLES.exceptions["no_views"].get(op)
    return f"{op!r} is not among the operators that a file may name{f' ({why})' if why else ''}"
