"""Strategies solved by CP-SAT."""
