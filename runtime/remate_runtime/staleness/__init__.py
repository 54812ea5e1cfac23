"""Comparison of the live model with the planned model: code and attributes, at `apply` and at every call."""

from __future__ import annotations

from .attributes import (
    CHILDREN,
    FORWARDS_OWN_FLAG,
    collected_within,
    global_hooks,
    hook_name,
    hook_reads,
    hooks_of,
    is_forwards_own,
    is_torchs,
    only_looks,
    record,
    record_attribute,
    replaced_forward,
)
from .beside import example_call
from .classes_of_inputs import input_classes
from .code import Code
from .compare import (
    NothingToTrainError,
    NumericalDifference,
    beyond_reordering,
    clear_gradients,
    coarsest,
    compare_models,
    default_loss,
    generator_states,
    tensors_of,
    training_step,
)
from .differences import CHECKPOINTS, Differences, checkpoints, shown
from .digest import NOW, Made, at_path, code_of, compare_digest, make_digest, own_class
from .eager_operators import BEYOND_EAGER, EagerOperators, beyond_eager
from .first_call import FirstCall, make_caches
from .guard import Guard, not_called
from .inner_values import NONE, array_hash, inner, is_array, is_bytes_of_array, may_change
from .ownership import is_own, is_own_path, qualified
from .parts import digest_of_parts, part_digest
from .same_forward import ignores_identity
from .values import (
    MAX_CONSTANT,
    MISSING,
    OPAQUE,
    attribute,
    either,
    has_fields,
    held_by,
    is_config,
    same,
)

__all__ = [
    "BEYOND_EAGER",
    "CHECKPOINTS",
    "CHILDREN",
    "FORWARDS_OWN_FLAG",
    "MAX_CONSTANT",
    "MISSING",
    "NONE",
    "NOW",
    "OPAQUE",
    "Code",
    "Differences",
    "EagerOperators",
    "FirstCall",
    "Guard",
    "Made",
    "NothingToTrainError",
    "NumericalDifference",
    "array_hash",
    "at_path",
    "attribute",
    "beyond_eager",
    "beyond_reordering",
    "checkpoints",
    "clear_gradients",
    "coarsest",
    "code_of",
    "collected_within",
    "compare_digest",
    "compare_models",
    "default_loss",
    "digest_of_parts",
    "either",
    "example_call",
    "generator_states",
    "global_hooks",
    "has_fields",
    "held_by",
    "hook_name",
    "hook_reads",
    "hooks_of",
    "ignores_identity",
    "inner",
    "input_classes",
    "is_array",
    "is_bytes_of_array",
    "is_config",
    "is_forwards_own",
    "is_own",
    "is_own_path",
    "is_torchs",
    "make_caches",
    "make_digest",
    "may_change",
    "not_called",
    "only_looks",
    "own_class",
    "part_digest",
    "qualified",
    "record",
    "record_attribute",
    "replaced_forward",
    "same",
    "shown",
    "tensors_of",
    "training_step",
]
