"""Blocks that do the same are traced once: found by what forward asks of torch in each, call by call; traced by one of
them alone; and their graphs put where the others stand.
"""
