"""`remate` and `python -m remate`: the command as a process of its own.

Ctrl-C ends the process at once, without a KeyboardInterrupt, which libraries turn into other errors or crash on where
it meets them in the middle of something. Nothing is lost by it: files are written whole or not at all. Where Ctrl-C is
ignored (what a script starts in the background), it stays ignored.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_WRITING = {("remate_runtime.support.files", name) for name in ("write_atomically", "check_writable")}
_INTERRUPTED = 130  # as of every process that ends by Ctrl-C


def run() -> None:
    """Run the command that the process was started with, and exit."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, leave)
    from .cli import main

    status = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


def leave(number: int, frame: FrameType | None) -> None:
    """End the process, after the temporary file is removed if one is being written. For `signal.signal`."""
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _WRITING:
            raise KeyboardInterrupt
        frame = frame.f_back
    os.write(2, b"\nerror: interrupted\n" if os.isatty(2) else b"error: interrupted\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    run()
