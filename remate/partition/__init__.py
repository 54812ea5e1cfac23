"""Divides a flat step into a hierarchy of blocks, in which equal blocks are recognized."""
