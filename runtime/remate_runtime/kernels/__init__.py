"""Operators and literals of a schedule as live objects of torch."""
