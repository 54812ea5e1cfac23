"""Commands that produce the figures in the README; their output is kept in `results/`."""
