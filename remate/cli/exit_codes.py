"""What the exit status of every command means."""

from __future__ import annotations

FINE = 0
FINDINGS = 1  # the command did its work and found faults, or could not do it (an infeasible budget, say)
USAGE = 2  # wrong arguments, a file that is not there, or libraries that are not installed
STALE = 3  # the live model is not the one that the schedule was planned for
UNSUPPORTED = 4  # the file needs a newer version of remate
INTERRUPTED = 130
