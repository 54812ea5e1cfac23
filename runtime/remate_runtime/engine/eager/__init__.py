"""The engine that calls one operator after the other."""
