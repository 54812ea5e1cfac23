"""Records a training call of a script, so that it can be planned. The script runs until the module's second call."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from torch import nn

from ..capture.recorded import RecordedCall, recording
from ..errors import CaptureError
from .script import run_script
from .watch import Backward, Listener, Watch


class _First(Listener):
    """Waits for the first trained module (of a given class, if any), and records its next call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.call: RecordedCall | None = None
        self.others: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def gradient(self, module: nn.Module, backward: Backward) -> None:
        if self.call is not None:
            return
        if self._name and type(module).__name__ != self._name:
            self.others.add(module)
            return
        self.call = RecordedCall(module)
        module.__class__ = recording(type(module), self.call, stop=True)


def script_call(path: str, arguments: Sequence[str], name: str = "") -> RecordedCall:
    """Run a script up to the second training call of a module, record the call, and stop the script there.

    Args:
        path: The script.
        arguments: Its arguments.
        name: Class of the module; "" for the first trained module.

    Raises:
        CaptureError: The script ends before such a call.
        OSError: The file cannot be read.
    """
    first = _First(name)
    with Watch(first):
        status = run_script(path, arguments)
    call = first.call
    if call is not None and type(call.model).__mro__[1].__qualname__ == type(call.model).__qualname__:
        call.model.__class__ = type(call.model).__mro__[1]
    if call is None or not call.is_taken:
        others = sorted({type(module).__name__ for module in first.others})
        ended = f"; it ended with status {status}" if status else ""
        hint = (
            f"it trains {', '.join(others)}: name one with --module"
            if others
            else ("it must call a module in train mode, with a gradient to its output, twice; or write FILE.py:build")
        )
        raise CaptureError(f"{path} makes no second training call{f' of a {name}' if name else ''}{ended}", hint=hint)
    return call
