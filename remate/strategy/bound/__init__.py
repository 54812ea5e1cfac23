"""Bounds that no schedule can beat: lower limits of time and of the peak."""
