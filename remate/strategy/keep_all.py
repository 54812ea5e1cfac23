"""The schedule without reruns. Every search begins with it, so this strategy has nothing to add."""

from __future__ import annotations

from .base import KEEP_ALL, Context, Proposal, Proposals, Request, Strategy
from .instance import Instance


def keep_all(instance: Instance, request: Request, context: Context) -> Proposals[None]:
    """Nothing runs again."""
    yield Proposal(())


KEEP_ALL_STRATEGY = Strategy(KEEP_ALL, "nothing runs again", keep_all)
