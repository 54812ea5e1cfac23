"""Every code of a ScheduleError, with its meaning in one line. `schema/errors.md` has a section for each.

Codes are stable: the meaning of a code never changes, and a retired code is never used again.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    # The file, its encoding, its syntax
    "R000": "the file cannot be read or written",
    "R001": "the file is not UTF-8 text without a byte-order mark",
    "R002": "the file is not JSON",
    "R003": "an object has the same key twice",
    "R004": "the file is not a schedule",
    "R005": "the file has a newer format version than this reader knows",
    "R006": "the file requires a feature that this reader does not have",
    # Shape: fields and their JSON types
    "R010": "unknown field",
    "R011": "missing field",
    "R012": "wrong JSON type",
    "R013": "value out of its range, or not one of those allowed",
    "R014": "malformed name",
    "R015": "a block has both operations and instances",
    "R016": "malformed tree of inputs or outputs",
    "R017": "unknown kind of statement",
    "R018": "malformed entry of the digest",
    # Tensor types and literals
    "R020": "malformed or impossible tensor type",
    "R021": "malformed literal",
    "R022": "malformed reference to a value",
    "R023": "elements of a constant do not fit its type",
    "R024": "malformed expression of sizes",
    "R025": "an expression of sizes that gives no size",
    "R026": "malformed dimension or limit, or a dimension that no input has on its own",
    "R027": "malformed expression of live attributes",
    "R028": "malformed live attribute",
    # Names and references
    "R030": "reference to a value that does not exist",
    "R031": "the same id or name twice",
    "R032": "a block contains itself",
    "R033": "unknown block",
    "R034": "a block's input is not bound, or `with` binds an unknown name",
    "R035": "reference to an output that the operation does not have",
    "R036": "a value is used before it is computed",
    "R037": "parameter, buffer or live attribute that the model does not have",
    "R038": "a bound value has another type than the block declares",
    "R039": "costs of an operation that the block does not have",
    # Plans and recomputations
    "R040": "unknown plan",
    "R041": "a recomputation names an unknown operation",
    "R042": "a recomputation names an operation that is not in forward",
    "R043": "a recomputation names a view",
    "R044": "`before` names no operation or instance",
    "R045": "a recomputation before the first run of its operation",
    "R046": "a plan takes the reserved name baseline",
    "R047": "a page names an unknown value",
    "R048": "a page names a value that cannot leave the device",
    "R049": "a point of a page is unknown, or out of order",
    # Operators
    "R050": "operator that a file may not name, or that was not permitted",
    "R051": "unknown operator",
    "R052": "operator that writes over its arguments",
    "R053": "the file's description of an operation does not fit its operator",
    # Signature, gradients, updates
    "R060": "a gradient is stated for a name that is not a parameter or input",
    "R061": "a gradient is stated twice",
    "R062": "a gradient or an update has the wrong type",
    "R063": "an update names an unknown buffer, a value that forward does not produce, or one that shares an "
    "updated buffer's storage",
    "R064": "an output names a value that forward does not produce",
    "R065": "`frozen` names an unknown parameter, or `tied` or `distributed` an unknown parameter or buffer",
    "R066": "`fill` names something other than an input, or a number that the input's type cannot hold",
    # Limits
    "R070": "the file is too large",
    "R071": "nesting too deep",
    "R072": "too many items",
    "R073": "text too long",
    "R074": "the tensors of a step add up to more bytes than the limit",
    # Promises
    "R080": "the peak is over the budget",
    "R081": "a figure of the solve record differs from the schedule's",
    "R082": "the model is not the one that the schedule was planned for",
    "R083": "the step differs from the one in the fingerprint",
    # Splits
    "R090": "a split names something other than an operation, or operations of several instances",
    "R091": "an operation that cannot be split along rows",
    "R092": "more tiles than rows, or fewer than two",
    "R093": "a split in a file that does not require the feature",
}
