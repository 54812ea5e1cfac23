"""Plans of repeated blocks: each block is solved once, and each instance uses one of its plans."""
