"""Captures CUDA's step on a machine without a GPU."""
