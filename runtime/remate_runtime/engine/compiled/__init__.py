"""The engine "compiled": the step in segments, each compiled by Inductor. Needs a C++ compiler.

A segment is what lies between two borders of block instances (`segments`): a recomputation belongs to the operation
that follows it, and none crosses the forward/backward boundary or the delivery of a gradient. Slots hold storages'
owners alone (`lives`), views are made inside the segments that read them (`graphs`). Equal segments share one compiled
function (`artefacts`); neighbours that share theirs with nobody are one (`fit`). What only compiled segments see of
images lies as convolutions like it (`layouts`). What draws random numbers, what is not torch's own and what does not
compile is interpreted by the instructions of `eager`.
"""
