"""From a live model to the flat graph of its training step. Needs torch; nothing else of the planner does."""
