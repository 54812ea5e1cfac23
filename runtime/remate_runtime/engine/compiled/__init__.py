"""The engine "compiled": runs the step in segments that Inductor compiles. Needs a C++ compiler.

A segment is the code between two borders of block instances (`segments`). A recomputation belongs to the operation
that follows it. No segment crosses the forward/backward boundary or the delivery of a gradient. Slots hold only the
owners of storages (`live_ranges`); segments create the views that they read (`graphs`). Equal segments share one
compiled function (`artefacts`). Neighbours that share their functions with no other segment are merged (`fit`).
Tensors that only compiled segments access may have a different memory layout (`layouts`). The instructions of `eager`
interpret random operations, operators of other libraries, and operations that do not compile.
"""
