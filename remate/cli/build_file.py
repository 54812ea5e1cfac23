"""`FILE.py:build`: import a user's file and call its function, which returns (model, args) or (model, args, kwargs), or
a call that `remate.record` took from a loop."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from remate_runtime.support.plain_text import plain

from .usage import UsageError

if TYPE_CHECKING:
    import torch

    from ..capture.recorded import CallSettings, RecordedCall

_SHAPE = '\n  hint: end it with `return model, (x, y)` or `return model, (x,), {"labels": labels}`'


class Target(NamedTuple):
    """What `build()` made. state: what a recorded call was made in, None for a call that was written down."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: CallSettings | None = None

    @property
    def call(self) -> RecordedCall:
        """What planning takes."""
        from ..capture.recorded import RecordedCall

        return RecordedCall.of(self.model, self.args, self.kwargs, self.state)


def load_target(text: str) -> Target:
    """Import the file of `text` (`FILE.py:function`; the function defaults to `build`), call the function, check what
    it returns. Raises UsageError, with the line of the user's file where it failed."""
    path, name = _split(text)
    if not path.is_file():
        raise UsageError(f"{plain(str(path))}: no such file\n  hint: --model and plan take FILE.py:build")
    module = _user_code(path, "while it was imported", lambda: _import(path))
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        some = f"\n  hint: it has {', '.join(sorted(known)[:8])}" if known else ""
        raise UsageError(f"{path} has no function {name!r}{some}")
    return _checked(_user_code(path, f"in {name}()", function), f"{path}:{name}")


def _split(text: str) -> tuple[Path, str]:
    path, colon, name = text.rpartition(":")
    return (Path(path), name) if colon and name.isidentifier() else (Path(text), "build")


def _import(path: Path) -> Any:
    name = f"_remate_build_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python FILE.py` does, so that the file finds its neighbours
    spec.loader.exec_module(module)
    return module


def _user_code(path: Path, when: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except UsageError:
        raise
    except SyntaxError as error:
        raise UsageError(f"{_shown(error.filename or '', path)}:{error.lineno}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        place, raised = _places(error, path)
        raise UsageError(f"{place}: {when}: {what}{raised}") from None


def _places(error: BaseException, path: Path) -> tuple[str, str]:
    """`file:line` of the innermost frame in the user's file; where it was raised, if that is in another file."""
    frames = [(_shown(f.filename, path), f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    ours = [f"{name}:{line}" for name, line in frames if name == str(path)]
    name, line = frames[-1]
    return (ours[-1] if ours else str(path)), (f" (raised at {name}:{line})" if ours and name != str(path) else "")


def _shown(filename: str, path: Path) -> str:
    """The user's file as it was named, another one without its folder."""
    return str(path) if filename == str(path.resolve()) or filename == str(path.absolute()) else Path(filename).name


def _checked(made: Any, where: str) -> Target:
    import torch

    from ..capture.recorded import RecordedCall

    if isinstance(made, RecordedCall):
        return Target(made.model, made.args, made.kwargs, made.state)
    if not isinstance(made, tuple | list) or len(made) not in (2, 3):
        got = f"{len(made)} things" if isinstance(made, tuple | list) else f"a {type(made).__name__}"
        raise UsageError(f"{where} must return (model, args) or (model, args, kwargs), not {got}{_SHAPE}")
    model, args, kwargs = (*made, {})[:3]
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"{where}: the first thing it returns is a {type(model).__name__}, not a torch.nn.Module{_SHAPE}"
        )
    if not isinstance(args, tuple | list):
        raise UsageError(f"{where}: args must be a tuple of the model's inputs, not a {type(args).__name__}{_SHAPE}")
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise UsageError(f"{where}: kwargs must be a dict with names as keys, not a {type(kwargs).__name__}{_SHAPE}")
    return Target(model, tuple(args), kwargs)
