"""The engine "eager": calls one operator after the other."""
