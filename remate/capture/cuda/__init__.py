"""The step that CUDA runs, captured where there is no GPU."""
