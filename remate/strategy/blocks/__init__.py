"""Plans of repeated blocks, each block solved once, and the choice among them for every instance."""
