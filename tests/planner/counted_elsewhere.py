"""A module of Python that a forward counts in."""

count = 0
