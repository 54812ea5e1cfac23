"""`remate.auto` for libraries with their own loop: `.transformers`, `.lightning`, `.accelerate`. Each imports only
its own."""
