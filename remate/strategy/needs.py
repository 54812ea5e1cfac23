"""What strategies need of a step, and whether it has that."""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

from .base import Need
from .instance import StepInstance

NEEDS: tuple[Need, ...] = get_args(Need)
LACKS: dict[Need, str] = {
    "backward": "backward operations, and this step has none",
    "forward": "a step in which every operation may run again, and this step has a backward",
    "hierarchy": "a hierarchy of blocks, and this step has none",
    "chain": "a chain of several stages, and this step is a single stage",
    "order": "an order that may change: a bare instance without --keep-order (remate solve)",
}


def lacking(instance: StepInstance, needs: Collection[Need]) -> Need | None:
    """Return the first of these needs that an instance does not meet, or None."""
    return next((need for need in NEEDS if need in needs and not _meets(instance, need)), None)


def _meets(instance: StepInstance, need: Need) -> bool:
    if need == "backward":
        return instance.has_backward
    if need == "forward":
        return not instance.has_backward
    if need == "hierarchy":
        return bool(instance.blocks)
    if need == "order":
        return instance.orderable
    from .chain.chain import chain_of

    return instance.has_backward and len(chain_of(instance).stages) > 1
