"""Local search over reruns: no solver needed."""
