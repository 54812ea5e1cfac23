"""`remate trace`: the predicted step as other tools show it: Perfetto, torch's memory viewer. Loads no torch."""

from .perfetto import perfetto
from .snapshot import snapshot, snapshot_bytes

__all__ = ["perfetto", "snapshot", "snapshot_bytes"]
