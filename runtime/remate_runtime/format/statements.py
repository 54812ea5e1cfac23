"""The statements of a plan, one struct for each kind."""

from __future__ import annotations

import msgspec

from .vocabulary import PageMemory, SplitAxis


class FileObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An object of the file: unknown fields are errors, defaults are left out."""


class Recompute(FileObject, frozen=True):
    """Forward operations (or whole instances) that run again, in this order, just before the point `before`."""

    recompute: tuple[str, ...]
    before: str
    note: str = ""


class Page(FileObject, frozen=True):
    """Forward values (or those of whole instances) whose storages leave the device and come back before their next
    read.

    Points are operations, or instances for the start of their backward. out: from where on the copy may run; "": as
    soon as the value is made. gone: where the bytes have left; "": behind the last read in forward. back: where a
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
    so on. into: number of tiles. along: what is divided.

    Alone among statements it can change gradients: the order in which sums over rows are taken (`reordered`).
    """

    split: tuple[str, ...]
    into: int
    along: SplitAxis = "rows"
    note: str = ""
