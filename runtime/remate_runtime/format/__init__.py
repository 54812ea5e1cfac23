"""The schedule file: types, reading, writing, and faults with their places. Needs no torch."""

from __future__ import annotations

from .codes import CODES
from .expression_text import parse_real, parse_size
from .expressions import Factor, Real, Side, Size, Term, constant, dimension, divided, spelled
from .fingerprints import check_fingerprint, fingerprint
from .limits import MAX_FAULTS
from .live_range import range_text
from .module_paths import fold_paths, unfold_paths
from .number_text import Tree, computed, names_of, parse_number, renamed, written_number
from .positions import locate, places, scan, text_at
from .reader import decode, load, read
from .schedule import (
    BASELINE,
    FORMAT,
    REVISION,
    VERSION,
    Block,
    Compiled,
    Constant,
    Digest,
    Dimension,
    Instance,
    Live,
    Model,
    ModuleGroup,
    Operation,
    Recompute,
    Schedule,
    Settings,
    Solve,
    Statement,
)
from .signature import escape, fill_fault, input_leaves, is_attribute, output_leaves
from .sized_type import SizedType, open_axes, parse_sized
from .substitution import PLANNED, at_size, checked_size, out_of_range, ranged
from .suggest import did_you_mean
from .tensor_type import DTYPES, TensorType, contiguous, parse_type
from .vocabulary import DEVICES, GRADIENTS, MEMORY_FORMATS, NON_FINITE, STOPPED_BY, Device, Dtype, Gradients, StoppedBy
from .writer import checked_text, encode, save

__all__ = [
    "BASELINE",
    "CODES",
    "DEVICES",
    "DTYPES",
    "FORMAT",
    "GRADIENTS",
    "MAX_FAULTS",
    "MEMORY_FORMATS",
    "NON_FINITE",
    "PLANNED",
    "REVISION",
    "STOPPED_BY",
    "VERSION",
    "Block",
    "Compiled",
    "Constant",
    "Device",
    "Digest",
    "Dimension",
    "Dtype",
    "Factor",
    "Gradients",
    "Instance",
    "Live",
    "Model",
    "ModuleGroup",
    "Operation",
    "Real",
    "Recompute",
    "Schedule",
    "Settings",
    "Side",
    "Size",
    "SizedType",
    "Solve",
    "Statement",
    "StoppedBy",
    "TensorType",
    "Term",
    "Tree",
    "at_size",
    "check_fingerprint",
    "checked_size",
    "checked_text",
    "computed",
    "constant",
    "contiguous",
    "decode",
    "did_you_mean",
    "dimension",
    "divided",
    "encode",
    "escape",
    "fill_fault",
    "fingerprint",
    "fold_paths",
    "input_leaves",
    "is_attribute",
    "load",
    "locate",
    "names_of",
    "open_axes",
    "out_of_range",
    "output_leaves",
    "parse_number",
    "parse_real",
    "parse_size",
    "parse_sized",
    "parse_type",
    "places",
    "range_text",
    "ranged",
    "read",
    "renamed",
    "save",
    "scan",
    "spelled",
    "text_at",
    "unfold_paths",
    "written_number",
]
