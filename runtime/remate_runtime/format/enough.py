"""Ends the search for faults early: a file can have millions, and nobody reads more than a hundred."""

from __future__ import annotations


class EnoughFaultsError(Exception):
    """Raised by code that has collected MAX_FAULTS faults, caught where the search began. Never leaves the reader."""
