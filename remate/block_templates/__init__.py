"""Converts a flat step and a plan to the blocks, instances and named plans of a schedule file."""
