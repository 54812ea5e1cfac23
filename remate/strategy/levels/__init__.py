"""HiRemate: a step as a tree of parts of bounded size, planned from its leaves to its root."""
