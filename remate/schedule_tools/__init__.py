"""Checks, differences, explanations, edits and merges of schedule files. Needs no torch."""
