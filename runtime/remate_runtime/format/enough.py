"""How the search for faults ends early: a file can hold millions, and nobody reads more than a hundred."""

from __future__ import annotations


class EnoughFaultsError(Exception):
    """Raised by whoever has collected MAX_FAULTS faults, caught by whoever began the search. Never leaves the
    reader."""
