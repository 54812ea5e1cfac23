"""Facts about devices: memory, times, row layouts of oneDNN."""
