"""Strategies that use the solver CP-SAT."""
