"""From a flat step to a hierarchy of blocks, in which equal blocks are recognized."""
