"""The user's cache of measured costs: a profile for each device and version of torch, shared by all models.

The first measurement stays: a model that is planned again has the same costs, so its schedule has the same bytes.
Losing the cache only means measuring again, so no fault in it is an error.
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
    """Return the system's folder for user caches.

    It is the XDG base directory ($XDG_CACHE_HOME, ~/.cache), ~/Library/Caches on macOS, %LOCALAPPDATA% on Windows.

    Raises:
        RuntimeError: The user has no home.
    """
    named = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        base = Path(named)
    elif sys.platform == "win32":
        base = Path.home() / "AppData" / "Local"
    else:
        base = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return base / "remate" / "profiles"


def path_for(device: str) -> Path:
    """Return the path of the profile for a device (by name) and the installed torch.

    Raises:
        RuntimeError: The user has no home.
    """
    name = f"{device} torch {store.profile_of(device, {}).torch}"
    return folder() / f"{re.sub(r'[^A-Za-z0-9_.]+', '-', name)}.json"


def read(device: str) -> dict[str, Cost]:
    """Return the cached costs of `device` by signature; none, with a warning, for an unusable file."""
    try:
        return _read(path_for(device), device)
    except (ProfileError, RuntimeError) as error:
        _warn(error, "the costs are measured again")
        return {}


def add(device: str, measured: Mapping[str, Cost], again: bool = False) -> dict[str, Cost]:
    """Add measured costs to the cache, and return its costs for their signatures.

    Costs that another process cached meanwhile stay, unless measured `again`. Warns if the file cannot be written; a
    damaged file is replaced.
    """
    try:
        path = path_for(device)
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path.with_suffix(".lock")):
            try:
                known = _read(path, device)
            except ProfileError:
                known = {}  # `read` has warned
            merged = {**known, **measured} if again else {**measured, **known}
            if merged != known:
                store.write(path, store.profile_of(device, merged))
    except (ProfileError, RuntimeError, OSError) as error:
        _warn(error, "what was measured is not kept for the next time")
        return dict(measured)
    return {key: merged[key] for key in measured}


def _read(path: Path, device: str) -> dict[str, Cost]:
    profile = store.read(path)
    if profile is None:
        return {}
    store.check_same_machine(profile, device, path)
    return profile.costs


def _warn(error: Exception, then: str) -> None:
    reason = str(error).partition("\n")[0]
    warnings.warn(f"{reason}; {then}", ProfileCacheWarning, stacklevel=2)
