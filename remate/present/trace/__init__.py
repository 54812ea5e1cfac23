"""`remate trace`: the predicted step for Perfetto and for torch's memory viewer. Does not import torch."""

from .perfetto import perfetto
from .snapshot import snapshot, snapshot_bytes

__all__ = ["perfetto", "snapshot", "snapshot_bytes"]
