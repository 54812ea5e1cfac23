"""The operators that PyTorch chooses on CUDA, by a CUDA build in front of a stub of the CUDA runtime, and by rules."""
