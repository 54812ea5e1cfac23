"""Windows of operations that can be split along rows, the costs of their tiles, and what a file states of them."""
