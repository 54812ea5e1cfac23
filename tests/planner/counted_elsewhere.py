"""A Python module in which a forward keeps a counter."""

count = 0
