"""Pipelines of `torch.distributed.pipelining`: their order of actions, the memory of a rank, and the time of a step."""
