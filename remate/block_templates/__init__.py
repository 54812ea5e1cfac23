"""From a flat step and its recomputations to the blocks, the program and the plans of a schedule file."""
