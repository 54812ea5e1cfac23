"""Commands that produce the figures of the documentation.

Their output is in `results/`; `tools/docs --write` takes it from there.
"""
