"""Exit statuses of all commands."""

from __future__ import annotations

FINE = 0
FINDINGS = 1  # faults, or a request that cannot be met, such as an infeasible budget
USAGE = 2  # wrong arguments, a missing file, or missing libraries
STALE = 3  # the schedule was planned for a different model
UNSUPPORTED = 4  # the file needs a newer version of remate
INTERRUPTED = 130
