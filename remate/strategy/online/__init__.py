"""Policies that replay a step and decide as they go what to free: what is missing runs again when it is read."""
