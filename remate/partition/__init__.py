"""From a flat step to a hierarchy of blocks, equal blocks recognised."""
