"""What a step needs to know of the device that runs it: memory, time, rows of oneDNN."""
