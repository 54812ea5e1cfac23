"""Attributes and inputs that change during training: captures at several values, and expressions that fit all."""
