"""Search over states of a step: the next operation, and the forward storages that are resident before it."""
