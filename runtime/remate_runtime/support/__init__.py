"""Small helpers: writing files, printing quantities, escaping text, pausing the garbage collector."""
