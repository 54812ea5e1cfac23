"""A coverage-guided fuzz target for the processing of a schedule file before a model is involved."""
