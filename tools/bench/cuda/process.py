"""A process that answers commands within a limit, or is ended. Standard library alone."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_TAIL = 4000  # letters of a log that a failure shows
_ROOT = Path(__file__).resolve().parents[3]
_PACKAGES = re.compile(r"(?<=\")[^\"\n]*/site-packages/")


class Process:
    """failure: why it can no longer be asked, "" as long as it can."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], folder: Path, log: Path) -> None:
        self.failure = ""
        self._log = log
        self._answers: queue.Queue[str | None] = queue.Queue()
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def tell(self, command: str) -> None:
        """Send a command, whose answer `hear` waits for."""
        assert self._process.stdin is not None
        if not self.failure:
            try:
                self._process.stdin.write(command + "\n")
                self._process.stdin.flush()
            except OSError as error:
                self._fail(f"it had stopped: {error}")

    def hear(self, until: float) -> dict[str, Any]:
        """The answer; {} once the process has failed. until: on the clock of time.monotonic."""
        if self.failure:
            return {}
        try:
            line = self._answers.get(timeout=max(0.01, until - time.monotonic()))
        except queue.Empty:
            self._fail("no answer in time")
            return {}
        if line is None:
            self._fail(f"the process stopped, exit status {self._process.wait()}")
            return {}
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            self._fail(answer["failed"])
            return {}
        return answer

    def _fail(self, why: str) -> None:
        self.close()
        with suppress(OSError):
            why += "\n" + self._log.read_text(encoding="utf-8", errors="replace")[-_TAIL:]
        self.failure = without_folders(why).strip()

    def close(self) -> None:
        """End it, and whatever it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def without_folders(text: str) -> str:
    """Return a traceback without the folders of this machine: results are kept, and read elsewhere."""
    return _PACKAGES.sub("", text.replace(f"{_ROOT}/", ""))
