"""The cost of each operation: measured on a device, or estimated for a named device."""
