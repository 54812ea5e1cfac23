"""Helpers for writing files, printing quantities, escaping text, and pausing the garbage collector."""
