"""Local search over recomputes: no solver needed."""
