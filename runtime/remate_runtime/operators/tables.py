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
    """op: the overload that writes over an argument. positions: arguments that may be overwritten; two: commutative."""

    op: str
    positions: tuple[int, ...]


class DeviceFacts(msgspec.Struct, frozen=True):
    """Bytes. allocation: the allocator rounds requests up to a multiple of it. generator_state: of the tensor that holds
    a generator's state, in the memory of the host."""

    allocation: int
    generator_state: int


class Tables(msgspec.Struct, frozen=True):
    """The file. A list of exceptions gives for each operator why the tables differ from what torch's schema says."""

    format: str
    version: int
    torch: str
    devices: dict[str, DeviceFacts]
    namespaces: frozenset[str]
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
# Namespaces whose operators run without being asked for. A file lists every other one in `namespaces`, and
# `remate_runtime.apply(..., namespaces=(...))` permits it.
NAMESPACES = TABLES.namespaces
# Operators of these namespaces that reach beyond their arguments: files, processes, the generator, autograd's state.
REFUSED = TABLES.refused
VIEWS = TABLES.views
RANDOM = TABLES.random
# Tagged as random by torch, but they draw nothing: without dropout, or with the random state as an argument.
NOT_RANDOM = frozenset(TABLES.exceptions["not_random"])
# The storage that these return holds more than the result: what they computed on the way to it, which would stay allocated.
COPIED = TABLES.copied
# operator -> (its in-place overload, argument positions that may be overwritten). Two positions: commutative.
IN_PLACE = {name: (form.op, form.positions) for name, form in TABLES.in_place.items()}


def namespace(op: str) -> str:
    return op.partition(".")[0]
