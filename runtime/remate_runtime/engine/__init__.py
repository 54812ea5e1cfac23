"""What executes a linked step on a device. Needs torch."""
