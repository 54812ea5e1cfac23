"""The user's cache of measured costs: one profile for each device and version of torch, shared by all models.

What is cached first stays: a model that is planned again has the costs that it had, so its schedule has the same bytes.
Losing the cache, or part of it, costs measuring again and nothing else; so nothing that is wrong with it is an error.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

from remate_runtime.support.files import alone

from ..errors import ProfileCacheWarning, ProfileError
from . import store
from .cost import Cost


def folder() -> Path:
    """Where the system keeps caches of the user: the XDG base directory ($XDG_CACHE_HOME, ~/.cache), ~/Library/Caches
    on macOS, %LOCALAPPDATA% on Windows. Raises RuntimeError if the user has no home."""
    named = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        base = Path(named)
    elif sys.platform == "win32":
        base = Path.home() / "AppData" / "Local"
    else:
        base = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return base / "remate" / "profiles"


def path_for(device: str) -> Path:
    """The profile of what was measured on `device` (its name) under the installed torch. Raises RuntimeError as
    above."""
    name = f"{device} torch {store.profile_of(device, {}).torch}"
    return folder() / f"{re.sub(r'[^A-Za-z0-9_.]+', '-', name)}.json"


def read(device: str) -> dict[str, Cost]:
    """The cached costs of `device` by signature; none, with a warning, if there is a file that cannot be used."""
    try:
        return _read(path_for(device), device)
    except (ProfileError, RuntimeError) as error:
        _warn(error, "the costs are measured again")
        return {}


def add(device: str, measured: Mapping[str, Cost], again: bool = False) -> dict[str, Cost]:
    """Add measured costs to the cache, and return its costs for their signatures: what another process cached meanwhile
    stays, unless measured `again`. Warns if the file cannot be written; a damaged one is replaced."""
    try:
        path = path_for(device)
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path.with_suffix(".lock")):
            try:
                known = _read(path, device)
            except ProfileError:
                known = {}  # `read` has said so
            merged = {**known, **measured} if again else {**measured, **known}
            if merged != known:
                store.write(path, store.profile_of(device, merged))
    except (ProfileError, RuntimeError, OSError) as error:
        _warn(error, "what was measured is not kept for the next time")
        return dict(measured)
    return {key: merged[key] for key in measured}


def _read(path: Path, device: str) -> dict[str, Cost]:
    found = store.read(path)
    if found is None:
        return {}
    store.check_same_machine(found, device, path)
    return found.costs


def _warn(error: Exception, then: str) -> None:
    reason = str(error).partition("\n")[0]
    warnings.warn(f"{reason}; {then}", ProfileCacheWarning, stacklevel=2)
