"""A coverage-guided fuzz target for all that happens to a schedule file before a model is at hand."""
