"""Engine "arena": the eager engine with results at planned addresses in one block of memory.

Addresses come from the packer that `remate show` uses (`remate_runtime.addresses`). `layout` decides which storages are
in the block and where, `forms` how an operator writes its result there, `blocks` manages the memory.
"""
