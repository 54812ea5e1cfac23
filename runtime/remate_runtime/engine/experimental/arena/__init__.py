"""The engine "arena": the eager engine, whose results lie at planned addresses in one block of memory.

Addresses are derived from the linked step by the packer that `remate show` uses (`remate_runtime.addresses`): `layout`
says which storages can lie in the block and where, `forms` how an operator writes its result there, `blocks` keeps the
memory.
"""
