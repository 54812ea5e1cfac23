"""Fuzzes the planner with generated models, whose training is compared with eager PyTorch."""
