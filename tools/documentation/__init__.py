"""Generates parts of the documentation, and the hook that builds its site."""
