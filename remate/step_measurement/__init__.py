"""Measures a real step: peak memory, time and gradients, beside eager PyTorch."""
