"""Attributes that change while training: a step captured at several values of them, and written with numbers that follow from
what they are at each call."""
