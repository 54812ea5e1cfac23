"""What came of an instance under a budget, as a file (`schema/result-1.schema.json`)."""

from __future__ import annotations

import hashlib

import msgspec

from remate_runtime.format import StoppedBy

from ..errors import InstanceError
from .form import BareInstance, encode, tree_check, typed

FORMAT, VERSION = "remate.result", 1


class BareResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """instance: its name; digest: of the instance, that the sequence is for. budget, peak, baseline_peak: bytes, the
    last of the instance's order without recomputation. time, baseline_time: in the unit of the instance. lower_bound:
    no sequence within the budget takes less time; for the given order, unless `reordered`. strategy: what found it;
    "a+b" where b improved on a. solver: with its version, or "none". stopped_by: why the search ended, "optimal" where
    time and bound are the same. reordered: first executions may stand in another order than the instance's. sequence:
    ids of nodes as they are executed."""

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

    @property
    def overhead(self) -> float:
        """Share of the baseline's time that it takes more."""
        return self.time / max(1, self.baseline_time) - 1.0

    @property
    def bound(self) -> float:
        """Share of the baseline's time that any sequence takes more, proven."""
        return self.lower_bound / max(1, self.baseline_time) - 1.0

    def encode(self) -> bytes:
        """The file's bytes, a line for each field."""
        fields = msgspec.structs.asdict(self)
        lines = [f'"{key}":{msgspec.json.encode(value).decode()}' for key, value in fields.items()]
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def decode_result(data: bytes) -> BareResult:
    """Read a result file. Raises InstanceError."""
    tree_check(data)
    result = typed(data, BareResult)
    if (result.format, result.version) != (FORMAT, VERSION):
        raise InstanceError(f"the file is no result: `format` {result.format[:80]!r}, `version` {result.version}")
    return result


def digest(bare: BareInstance) -> str:
    """Of what an instance says, whatever file it was read from; its name apart."""
    text = encode(msgspec.structs.replace(bare, name=""))
    return hashlib.sha256(text).hexdigest()
