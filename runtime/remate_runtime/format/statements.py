"""The statements of a plan, one struct for each kind."""

from __future__ import annotations

import msgspec

from .vocabulary import PageMemory, SplitAxis


class FileObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An object of the file: unknown fields are errors, defaults are left out."""


class Recompute(FileObject, frozen=True):
    """Forward operations, or whole instances, that run again in this order just before the point `before`."""

    recompute: tuple[str, ...]
    before: str
    note: str = ""


class Page(FileObject, frozen=True):
    """Forward values, or those of whole instances, whose storages leave the device and come back before their next
    read.

    A point is an operation, or an instance for the start of its backward. out: the copy may start here; "": as soon as
    the value is complete. gone: the bytes have left before this point; "": after the last read in forward. back: the
    storage is allocated again; "": just before the next read.
    """

    page: tuple[str, ...]
    to: PageMemory = "disk"
    out: str = ""
    gone: str = ""
    back: str = ""
    note: str = ""


class Split(FileObject, frozen=True):
    """Operations of one innermost instance that run tile by tile: the first tile of each, then the second of each, and
    so on.

    into: number of tiles. along: what is divided. A split is the only statement that can change gradients: it changes
    the order of sums over rows (`reordered`).
    """

    split: tuple[str, ...]
    into: int
    along: SplitAxis = "rows"
    note: str = ""
