"""The owner of code: the user (compared by source), a package (by version), or Python (not compared)."""

from __future__ import annotations

import csv
import functools
import importlib.metadata
import inspect
import os
import sys
import sysconfig
import types
from typing import Any

_STANDARD = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib") if sysconfig.get_path(name)
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_NEVER_OWN = frozenset({"torch", "remate", "remate_runtime"})  # wherever they are installed
_SCRIPTS = frozenset({"__main__", "__mp_main__"})  # the second is the name in processes that multiprocessing spawns
_COMMAND = "_remate_build_"  # prefix of the module names under which commands import a user's file


@functools.lru_cache(maxsize=4096)
def _is_own_file(file: str) -> bool:
    if file.startswith("<"):
        return True  # a notebook, an interpreter, exec
    path = os.path.realpath(file)
    return not (any(part in path for part in _INSTALLED) or path.startswith(_STANDARD) or _is_installed_beside(path))


def _is_installed_beside(path: str) -> bool:
    """Return whether a distribution that is installed in a folder above the file contains it.

    `pip install --target` and vendored packages are such folders. They need not be named `site-packages`, nor still be
    on `sys.path`.
    """
    folder, name = os.path.split(path)
    while name:
        if name in _installed_names(folder):
            return True
        folder, name = os.path.split(folder)
    return False


@functools.lru_cache(maxsize=4096)
def _installed_names(folder: str) -> frozenset[str]:
    """Return the files and packages directly in a folder that the `RECORD`s of its `.dist-info` folders list.

    An editable installation lists no source file, so that its code stays the user's own.
    """
    try:
        entries = [name for name in os.listdir(folder) if name.endswith(".dist-info")]
    except OSError:  # a folder that may not be read
        return frozenset()
    names: set[str] = set()
    for entry in entries:
        try:
            with open(os.path.join(folder, entry, "RECORD"), encoding="utf-8", newline="") as file:
                names.update(row[0].split("/")[0] for row in csv.reader(file) if row)
        except (OSError, UnicodeDecodeError, csv.Error):  # installed by something that writes no RECORD
            continue
    return frozenset(names.difference(entries))


def is_own(module: str) -> bool:
    """Return whether a module is the user's own, and no part of site-packages, Python or torch."""
    top = module.partition(".")[0]
    if not top or top in _NEVER_OWN or top in sys.builtin_module_names:
        return False
    return _is_own_file(getattr(sys.modules.get(module), "__file__", None) or "<unknown>")


def is_own_function(function: object) -> bool:
    """Return whether the code of a function is the user's own, in whatever class or module the function is."""
    code = inspect.getattr_static(function, "__code__", None) and getattr(function, "__code__", None)
    if not isinstance(code, types.CodeType):
        return False
    if code.co_filename.startswith("<"):
        return is_own(function.__module__ or "")
    # A wrapper has the `__module__` of what it wraps, and the globals of its own module.
    module = getattr(function, "__globals__", {}).get("__name__") or function.__module__ or ""
    return module.partition(".")[0] not in _NEVER_OWN and _is_own_file(code.co_filename)


def is_own_path(file: str) -> bool:
    """Return whether a file is the user's own."""
    return _is_own_file(file)


def has_own_file(function: Any) -> bool:
    """Return whether the code of a function is in a file of the user's, whatever its `__module__` says."""
    name = function.__code__.co_filename
    return is_own(function.__module__ or "") if name.startswith("<") else _is_own_file(name)


@functools.lru_cache(maxsize=1024)
def package_version(module: str) -> tuple[str, str] | None:
    """Return (package, version) of the package that contains a module.

    None for the user's code, for Python, and for torch, whose version the file records separately.
    """
    top = module.partition(".")[0]
    if top in _NEVER_OWN or is_own(module):
        return None
    loaded = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(loaded, str):
        return top, loaded
    try:
        return top, importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        return None


def module_name(module: str) -> str:
    """Return the name of a module as digests write it.

    A module of the user's is named by its file, so that `train.py` has the same name as a script, when imported, and
    when a command builds it.
    """
    if not is_own(module):
        return module
    if module in _SCRIPTS:
        file = getattr(sys.modules.get(module), "__file__", None)
        return _stem(file) if file else module
    return module.rpartition(".")[2].removeprefix(_COMMAND)


def _stem(file: str) -> str:
    return os.path.splitext(os.path.basename(file))[0]


def module_of(obj: object) -> str:
    """Return the name of the module of a class or function, as `module_name`.

    If a file was executed without becoming a module, the code's file name counts.
    """
    module = obj.__module__
    if module in sys.modules or not is_own(module):
        return module_name(module)
    methods = vars(obj).values() if isinstance(obj, type) else (obj,)
    codes = [getattr(getattr(method, "__func__", method), "__code__", None) for method in methods]
    file = next((code.co_filename for code in codes if code is not None), "<unknown>")
    return module_name(module) if file.startswith("<") else _stem(file)


def qualified(obj: object) -> str:
    """Return the name of a class or function with its module; classes of torch by the shortest package that exports
    them."""
    name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None) or type(obj).__qualname__
    module = getattr(obj, "__module__", None) or ""
    if not isinstance(name, str) or not isinstance(module, str):
        return type(obj).__qualname__
    if name.startswith("_VariableFunctionsClass."):
        return f"torch.{name.partition('.')[2]}"
    parts = module.split(".")
    if parts[0] == "torch":
        for end in range(1, len(parts)):
            if vars(sys.modules.get(".".join(parts[:end]), object)).get(name) is obj:
                return ".".join([*parts[:end], name])
    return f"{module_of(obj)}.{name}" if module else name


def name_in_value(obj: object) -> str:
    """Return the name of a class or function in a described value.

    It is `qualified`, but the user's own names have a dot in place of the module, so that a file may be renamed.
    """
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    own = isinstance(module, str) and isinstance(name, str) and (is_own_function(obj) or is_own(module))
    return f".{name}" if own else qualified(obj)
