"""Steps as CUDA graphs: an engine's launches are recorded once and replayed by each call, without Python overhead.

`captured_engine` lets an engine record its steps, `captured_step` decides for each call whether to replay and keeps
recordings by addresses, `recorded` records a step, `statics` handles tensors at addresses that replays share, `gpu`
wraps torch.cuda, `refused` returns why a step is not recorded, and `predicted_pool` predicts its memory.

All memory of a recorded step is in a *private pool*, which stays reserved. Before a replay, its inputs and the
gradients of outputs are copied into the pool; afterwards outputs, gradients and new values of buffers are copied out.
So only one forward at a time can have its values there, until its backward is complete; other calls meanwhile run
without graphs.
"""

from __future__ import annotations

from .captured_engine import in_cuda_graphs
from .gpu import PoolLease

__all__ = ["PoolLease", "in_cuda_graphs"]
