"""The result for an instance under a budget, as a file (`schema/result-1.schema.json`)."""

from __future__ import annotations

import hashlib

import msgspec

from remate_runtime.format import StoppedBy

from ..errors import InstanceError
from .form import BareInstance, encode, tree_check, typed

FORMAT, VERSION = "remate.result", 1


class BarePage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A time of an output in storage.

    Attributes:
        output: The output.
        gone: Position in the sequence of the first execution without it in memory.
        back: Position of the execution before which it is back.
    """

    output: str
    gone: int
    back: int


class BareResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A result.

    Attributes:
        format: Always `remate.result`.
        version: Version of the format.
        instance: Name of the instance.
        digest: Digest of the instance.
        budget: Bytes.
        peak: Bytes.
        time: In the unit of the instance.
        baseline_peak: Bytes of the instance's order without recomputation.
        baseline_time: In the unit of the instance.
        lower_bound: No sequence within the budget takes less time, for the given order unless `reordered`.
        strategy: The strategy of the sequence; "a+b" if b improved on a.
        solver: The solver with its version, or "none".
        stopped_by: Why the search ended; "optimal" if time and bound are equal.
        reordered: Whether first executions may have a different order than the instance's.
        sequence: Ids of nodes in order of execution.
        pages: Outputs in storage, by `gone`. Time does not count waits for copies.
        power: The device of `energy`.
        energy: Joules of all executions and copies.
    """

    format: str
    version: int
    instance: str
    digest: str
    budget: int
    peak: int
    time: int
    baseline_peak: int
    baseline_time: int
    lower_bound: int
    strategy: str
    solver: str
    stopped_by: StoppedBy
    reordered: bool
    sequence: tuple[str, ...]
    pages: tuple[BarePage, ...] = ()
    power: str = ""
    energy: float | None = None

    @property
    def overhead(self) -> float:
        """Return the additional time as a share of the baseline's."""
        return self.time / max(1, self.baseline_time) - 1.0

    @property
    def bound(self) -> float:
        """Return the proven additional time of any sequence as a share of the baseline's."""
        return self.lower_bound / max(1, self.baseline_time) - 1.0

    def encode(self) -> bytes:
        """Return the file's bytes, a line for each field."""
        fields = msgspec.structs.asdict(self)
        optional = {"pages": (), "power": "", "energy": None}
        stated = {key: value for key, value in fields.items() if key not in optional or value != optional[key]}
        lines = [f'"{key}":{msgspec.json.encode(value).decode()}' for key, value in stated.items()]
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def decode_result(data: bytes) -> BareResult:
    """Read a result file. Raises InstanceError."""
    tree_check(data)
    result = typed(data, BareResult)
    if (result.format, result.version) != (FORMAT, VERSION):
        raise InstanceError(
            f"the file is not a result: `format` is {result.format[:80]!r}, `version` is {result.version}"
        )
    return result


def digest(bare: BareInstance) -> str:
    """Return a digest of an instance without its name, independent of the form of its file."""
    text = encode(msgspec.structs.replace(bare, name=""))
    return hashlib.sha256(text).hexdigest()
