"""Compares the live model with the planned one: code and attributes, at `apply` and at every call."""

from __future__ import annotations

from .attributes import (
    FORWARDS_OWN_FLAG,
    MISSING,
    attribute,
    collected_within,
    hook_name,
    hooks_of,
    is_forwards_own,
    is_torchs,
    record,
    record_attribute,
    replaced_forward,
)
from .beside import example_call
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
from .digest import Made, at_path, compare_digest, make_digest, same
from .eager_operators import BEYOND_EAGER, EagerOperators, beyond_eager
from .first_call import FirstCall, make_caches
from .guard import Guard
from .ownership import is_own, qualified
from .parts import digest_of_parts, part_digest
from .same_forward import ignores_identity
from .values import MAX_CONSTANT, OPAQUE, is_config

__all__ = [
    "BEYOND_EAGER",
    "CHECKPOINTS",
    "FORWARDS_OWN_FLAG",
    "MAX_CONSTANT",
    "MISSING",
    "OPAQUE",
    "Code",
    "Differences",
    "EagerOperators",
    "FirstCall",
    "Guard",
    "Made",
    "NothingToTrainError",
    "NumericalDifference",
    "at_path",
    "attribute",
    "beyond_eager",
    "beyond_reordering",
    "checkpoints",
    "clear_gradients",
    "coarsest",
    "collected_within",
    "compare_digest",
    "compare_models",
    "default_loss",
    "digest_of_parts",
    "example_call",
    "generator_states",
    "hook_name",
    "hooks_of",
    "ignores_identity",
    "is_config",
    "is_forwards_own",
    "is_own",
    "is_torchs",
    "make_caches",
    "make_digest",
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
