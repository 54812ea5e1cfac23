"""The profiler of `remate train` beside ranges of the script and of optimizers: torch writes into freed memory where a
range ends in another session of the profiler than the one in which it began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import profiler

from remate_runtime.devices.cpu_memory import AllocationLog

from .test_train import NET, train, written

RANGES = (
    NET
    + """
net = Net(2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
sizes = iter(range(64, 2, -1))

def call():
    with torch.autograd.profiler.record_function("batch"):
        loss = net(torch.randn(next(sizes), 16)).square().mean()
    loss.backward()
    return loss

for _ in range(8):
    CALLS
    optimizer.zero_grad()
end(net)
"""
)


class Sessions:
    """Notes in which session of the profiler each open range began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number, self.running, self.crossing = 0, False, 0
        self.open: dict[object, int] = {}
        start, stop, sessions = AllocationLog.start, AllocationLog.stop, self

        def started(log: AllocationLog) -> None:
            start(log)
            self.number, self.running = self.number + 1, True

        def stopped(log: AllocationLog) -> None:
            stop(log)
            self.running = False

        class Range(profiler.record_function):
            def __enter__(self) -> Any:
                if sessions.running:
                    sessions.open[self] = sessions.number
                return super().__enter__()

            def __exit__(self, *error: object) -> None:
                began = sessions.open.pop(self, None)
                sessions.crossing += began is not None and sessions.running and began != sessions.number
                super().__exit__(*error)

        monkeypatch.setattr(AllocationLog, "start", started)
        monkeypatch.setattr(AllocationLog, "stop", stopped)
        monkeypatch.setattr(torch.autograd.profiler, "record_function", Range)


@pytest.mark.parametrize(
    "calls",
    ["call(); call(); optimizer.step()", pytest.param("call(); optimizer.step(call)", marks=pytest.mark.slow)],
)
def test_no_range_ends_in_another_session(
    calls: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = Sessions(monkeypatch)
    status, _, _ = train(capsys, written(tmp_path, RANGES.replace("CALLS", calls)))
    assert status == 0
    assert sessions.number
    assert not sessions.crossing


def test_open_ranges_are_named() -> None:
    log = AllocationLog()
    with profiler.record_function("before"):
        log.start()
        with profiler.record_function("outer"), profiler.record_function("inner"):
            torch.ones(2)
            log.stop()
        assert log.left_open() == ["outer", "inner"]
