"""Private interfaces of PyTorch, in one place. `docs/private-torch.md` lists each with its replacement."""
