"""`remate.auto` where libraries write the loop: `.transformers`, `.lightning`, `.accelerate`. Each imports its library,
and no other."""
