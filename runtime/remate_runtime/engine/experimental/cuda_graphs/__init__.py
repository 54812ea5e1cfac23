"""Steps as CUDA graphs: what an engine launches is recorded once and replayed by each call, so that Python and launches
cost nothing.

`captured_engine` makes an engine record its steps, `captured_step` decides by call whether one is replayed and notes
what was recorded for which addresses, `recorded` records one, `statics` is about tensors at addresses that replays
share, `gpu` is all that is asked of torch.cuda, `refused` says why a step is not recorded, and `predicted` what a
recorded one will hold.

All memory of a recorded step lies in a *private pool*, which stays reserved. A replay finds its inputs and the
gradients of outputs copied into the pool, and what it makes for others is copied out of it: outputs, gradients, new
values of buffers. So one forward at a time can have its values there, until its backward is over; other calls meanwhile
run as without graphs.
"""

from __future__ import annotations

from .captured_engine import in_cuda_graphs

__all__ = ["in_cuda_graphs"]
