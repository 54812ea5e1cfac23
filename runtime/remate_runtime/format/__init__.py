"""The schedule file: types, reading, writing, faults with their places. Needs no torch."""
