"""Profile files: measured costs by operation as canonical JSON (same costs, same bytes), written atomically."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from remate_runtime.support.files import advice, open_regular, write_atomically
from remate_runtime.support.plain_text import plain

from ..errors import ProfileError
from .cost import Cost

FORMAT = "remate.profile"
VERSION = 1


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A profile.

    Attributes:
        device: Where the costs were measured.
        torch: Version of torch at the measurement.
        costs: Costs by signature of the operation.
    """

    format: str
    version: int
    device: str
    torch: str
    costs: dict[str, Cost]


def profile_of(device: str, costs: Mapping[str, Cost]) -> Profile:
    import torch

    return Profile(format=FORMAT, version=VERSION, device=device, torch=str(torch.__version__), costs=dict(costs))


def read(path: Path) -> Profile | None:
    """Return the profile at `path`; None if there is no such file. Raises ProfileError if it cannot be used."""
    try:
        with open_regular(path) as file:
            text = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProfileError(f"the profile {plain(str(path))} cannot be read: {error.strerror}") from None
    try:
        profile = msgspec.json.decode(text, type=Profile)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProfileError(
            f"{plain(str(path))} is not a profile: {plain(str(error))}\n  hint: delete it, or give another path; "
            "it will be measured again"
        ) from None
    if profile.format != FORMAT or profile.version != VERSION:
        raise ProfileError(
            f"{plain(str(path))} is {profile.format!r} version {profile.version}; this program reads {FORMAT!r} "
            f"version {VERSION}\n  hint: delete it, or give another path; it will be measured again"
        )
    return profile


def check_same_machine(profile: Profile, device: str, path: Path) -> None:
    """Raise ProfileError unless missing costs can be measured on this machine and added to `profile`."""
    import torch

    here = (device, str(torch.__version__))
    if (profile.device, profile.torch) != here:
        raise ProfileError(
            f"the profile {path} lacks operations of this model, and was measured on {profile.device!r} with torch "
            f"{profile.torch}; here is {here[0]!r} with torch {here[1]}\n"
            "  hint: complete it where it was measured, or give another path"
        )


def encode(profile: Profile) -> bytes:
    """Return the canonical text: one operation per line, sorted by signature."""
    head = {key: getattr(profile, key) for key in ("format", "version", "device", "torch")}
    lines = [f'  "{key}": {_json(value)},' for key, value in head.items()]
    costs = [f"    {_json(key)}: {_json(profile.costs[key])}" for key in sorted(profile.costs)]
    body = "{\n" + ",\n".join(costs) + "\n  }" if costs else "{}"
    return ("{\n" + "\n".join(lines) + f'\n  "costs": {body}\n}}\n').encode()


def write(path: Path, profile: Profile) -> None:
    """Write the file atomically. Raises ProfileError on failure."""
    try:
        write_atomically(path, encode(profile))
    except OSError as error:
        raise ProfileError(
            f"the profile {plain(str(path))} cannot be written: {error.strerror}\n  hint: {advice(error)}"
        ) from None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
