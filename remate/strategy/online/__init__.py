"""Online policies: they replay a step, evict values when memory is full, and recompute them when they are read."""
