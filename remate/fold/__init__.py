"""From a flat step and its reruns to the blocks, the program and the plans of a schedule file."""
