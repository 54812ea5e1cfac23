"""What `tools/cuda` runs on a machine with a GPU: the tests that need one, and remate beside PyTorch's own means.

`__main__` and `contest` import the standard library alone, and every measurement is made in a process of its own: what
falls is written down with its traceback, and the rest goes on.
"""
