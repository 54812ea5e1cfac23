"""Optional dependencies, and the message when one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import MissingExtraError

# Extras of the distribution `remate`, and the modules that each brings. `remate` without any needs msgspec,
# jsonschema and shtab.
EXTRAS = {"torch": ("torch",), "plan": ("numpy", "scipy", "pyomo", "highspy"), "cpsat": ("ortools",)}
_LIBRARIES = {
    "torch": "PyTorch",
    "numpy": "NumPy",
    "scipy": "SciPy",
    "pyomo": "Pyomo",
    "highspy": "HiGHS",
    "ortools": "OR-Tools",
}
_BUILD = (
    "PyTorch comes in builds: choose one first (pip install torch "
    "--index-url https://download.pytorch.org/whl/cpu, say), or"
)


def require(what: str, *extras: str) -> None:
    """Raise MissingExtraError if modules of one of `extras` are not installed. Imports none of them.

    what: is about to need them, as the user called it: `remate plan`, `remate_runtime.apply`.
    """
    missing = {extra: absent for extra in extras if (absent := [m for m in EXTRAS[extra] if find_spec(m) is None])}
    if not missing:
        return
    names = [_LIBRARIES[module] for absent in missing.values() for module in absent]
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    command = f"pip install 'remate[{','.join(missing)}]'"
    hint = f"{_BUILD} take the default one: {command}" if "torch" in missing else command
    verb = "is" if len(names) == 1 else "are"
    raise MissingExtraError(f"{what} needs {listed}, which {verb} not installed\n  hint: {hint}", tuple(missing))
