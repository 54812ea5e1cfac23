"""The classical strategies, which see a step as a chain of stages: comparators, and what is left where memory is scarce."""
