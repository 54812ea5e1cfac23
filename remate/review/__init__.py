"""Reading, comparing and editing schedule files: `remate diff`, `explain`, `lint`, `edit`. Needs neither torch nor a
solver; whatever is said about memory or time comes from the linker and the simulator."""
