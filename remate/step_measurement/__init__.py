"""What a step really takes: bytes from the allocator, time beside eager, gradients against eager."""
