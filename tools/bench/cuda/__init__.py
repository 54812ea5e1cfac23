"""What `tools/cuda` runs on a machine with a GPU: the tests that need one, and remate beside PyTorch's own means.

`__main__` and `contest` import the standard library alone, and every measurement runs in a separate process: a
failure is recorded with its traceback, and the others continue.
"""
