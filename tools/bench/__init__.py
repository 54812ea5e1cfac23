"""Commands that produce the figures of the documentation.

They write to `results/`, and `tools/docs --write` reads from there.
"""
