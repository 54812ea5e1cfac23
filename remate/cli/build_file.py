"""`FILE.py:build`: import a user's file and call its function.

The function returns (model, args), (model, args, kwargs), or a call recorded by `remate.record`.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from remate_runtime.format import is_array, is_list, is_object
from remate_runtime.support.plain_text import plain

from .usage import UsageError

if TYPE_CHECKING:
    import torch

    from ..capture.recorded import CallSettings, RecordedCall

_SHAPE = '\n  hint: end it with `return model, (x, y)` or `return model, (x,), {"labels": labels}`'


class Target(NamedTuple):
    """The result of `build()`. state: the settings of a recorded call; None if the call was not recorded."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: CallSettings | None = None

    @property
    def call(self) -> RecordedCall:
        """The same as a recorded call, which the planner takes."""
        from ..capture.recorded import RecordedCall

        return RecordedCall.of(self.model, self.args, self.kwargs, self.state)


def load_target(text: str) -> Target:
    """Import a file, call its function and check the result.

    Args:
        text: `FILE.py:function`. The function defaults to `build`.

    Raises:
        UsageError: The import or the call failed. The message names the line in the user's file.
    """
    built, where = _called(text)
    return _checked(built, where)


def load_stages(text: str, count: int | None) -> tuple[list[Target], tuple[Any, Any] | None]:
    """Import a file as `load_target` does, and return the stages of a pipeline, and its loss with targets.

    Args:
        text: `FILE.py:function`. The function returns a list of stages, each as for `load_target`; or such a list, a
            loss function and a microbatch of targets. With `count`, it receives a number and returns that stage.
        count: Number of stages to build one by one.

    Raises:
        UsageError: The function returns something else.
    """
    if count is not None:
        return [_checked(*_called(text, stage, count)) for stage in range(count)], None
    built, where = _called(text)
    loss: tuple[Callable[..., Any], Any] | None = None
    if is_array(built) and isinstance(built, tuple) and len(built) == 3 and is_list(built[0]) and callable(built[1]):
        built, loss = built[0], (built[1], built[2])
    if not is_list(built) or not built:
        raise UsageError(
            f"{where} must return a list of stages, each (model, args), or (stages, loss_fn, target)"
            "\n  hint: or build one stage: def build(stage, stages), with --stages N"
        )
    return [_checked(stage, f"{where}, stage {at}") for at, stage in enumerate(built)], loss


def load_builder(text: str) -> Callable[..., object]:
    """Import a file and return its function, which the caller calls. text: `FILE.py:function`. Raises UsageError."""
    function, path, name = _function(text)

    def build(layout: object) -> object:
        return _user_code(path, f"in {name}()", lambda: function(layout), passed=(ValueError,))

    return build


def _called(text: str, *given: object) -> tuple[Any, str]:
    """Return what the function of `text` returns, and the place of the function."""
    call, path, name = _function(text)
    return _user_code(path, f"in {name}()", lambda: call(*given)), f"{path}:{name}"


def _function(text: str) -> tuple[Any, Path, str]:
    """Return the function of `text`, its file and its name."""
    path, name = _split(text)
    if not path.is_file():
        raise UsageError(f"{plain(str(path))}: no such file\n  hint: --model and plan take FILE.py:build")
    module: ModuleType = _user_code(path, "during import", lambda: _import(path))
    function = getattr(module, name, None)
    if not callable(function):
        contents: dict[str, object] = vars(module)
        known = [n for n, v in contents.items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        hint = f"\n  hint: it has {', '.join(sorted(known)[:8])}" if known else ""
        raise UsageError(f"{path} has no function {name!r}{hint}")
    return function, path, name


def _split(text: str) -> tuple[Path, str]:
    path, colon, name = text.rpartition(":")
    return (Path(path), name) if colon and name.isidentifier() else (Path(text), "build")


def _import(path: Path) -> Any:
    name = f"_remate_build_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look up their module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python FILE.py` does, so that the file can import its neighbours
    spec.loader.exec_module(module)
    return module


def _user_code(path: Path, when: str, call: Callable[[], object], passed: tuple[type[Exception], ...] = ()) -> Any:
    """Call the user's code. Errors are named with their line, but those of the classes in `passed`."""
    try:
        return call()
    except (UsageError, *passed):
        raise
    except SyntaxError as error:
        raise UsageError(f"{_shown(error.filename or '', path)}:{error.lineno}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        place, raised = _places(error, path)
        raise UsageError(f"{place}: {when}: {what}{raised}") from None


def _places(error: BaseException, path: Path) -> tuple[str, str]:
    """Return `file:line` of the innermost frame in the user's file, and the origin if it is in another file."""
    frames = [(_shown(f.filename, path), f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    user_lines = [f"{name}:{line}" for name, line in frames if name == str(path)]
    name, line = frames[-1]
    return (user_lines[-1] if user_lines else str(path)), (
        f" (raised at {name}:{line})" if user_lines and name != str(path) else ""
    )


def _shown(filename: str, path: Path) -> str:
    """The user's file as given on the command line; any other file without its folder."""
    return str(path) if filename == str(path.resolve()) or filename == str(path.absolute()) else Path(filename).name


def _all_texts(items: Iterable[object]) -> bool:
    return all(isinstance(item, str) for item in items)


def _checked(result: object, where: str) -> Target:
    import torch

    from ..capture.recorded import RecordedCall

    if isinstance(result, RecordedCall):
        return Target(result.model, result.args, result.kwargs, result.state)
    if not is_array(result) or len(result) not in (2, 3):
        got = f"{len(result)} items" if is_array(result) else f"a {type(result).__name__}"
        raise UsageError(f"{where} must return (model, args) or (model, args, kwargs), not {got}{_SHAPE}")
    items: list[Any] = [*result, {}]
    model, args, kwargs = items[:3]
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"{where}: the first item it returns is a {type(model).__name__}, not a torch.nn.Module{_SHAPE}"
        )
    if not is_array(args):
        raise UsageError(f"{where}: args must be a tuple of the model's inputs, not a {type(args).__name__}{_SHAPE}")
    if not is_object(kwargs) or not _all_texts(kwargs):
        raise UsageError(f"{where}: kwargs must be a dict with names as keys, not a {type(kwargs).__name__}{_SHAPE}")
    return Target(model, tuple(args), kwargs)
