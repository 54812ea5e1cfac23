"""The flat training step: what a schedule file expands to. Needs no torch."""
