"""Traces equal blocks once. Blocks are equal if they make the same calls of torch. One of them is traced individually,
and its graph is pasted at the places of the others.
"""
