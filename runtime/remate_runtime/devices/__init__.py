"""What a step must know about its device: memory, times, row layouts of oneDNN."""
