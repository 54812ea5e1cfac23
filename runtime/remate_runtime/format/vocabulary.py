"""The closed word lists of the format. Types, checks of the reader and enums of the JSON Schema all use them; a test
compares them."""

from __future__ import annotations

from typing import Literal, get_args

StoppedBy = Literal[
    "optimal",  # proven: no schedule of this step within the budget is faster
    "gap",  # proven to be within the gap that was requested
    "heuristic",  # every strategy ended, without a proof
    "iterations",  # the requested effort was spent; the same input gives the same file
    "time",  # the time limit came first; another run may give another file
    "interrupted",  # Ctrl-C; the best plan so far
    "edited",  # statements were edited by hand after solving
]
Gradients = Literal[
    "retained",  # until the end of the step, as if `.grad` was None before
    "accumulated",  # added to an existing `.grad`, and freed
    "consumed",  # used by an optimizer in backward, and freed
]  # use of delivered gradients
SplitAxis = Literal["rows"]  # the axis that a split divides: mostly the first axis of tensors
PageMemory = Literal["disk", "host"]  # where values are paged to: a scratch file, or pinned memory of the host
Device = Literal["cpu", "cuda"]  # kinds of device that a step is captured for
# "": on the CPU. "by torch's dispatch": by a CUDA build without a GPU. "by rules": by a CPU build.
Captured = Literal["", "on the device", "by torch's dispatch", "by rules"]
WITHOUT_DEVICE = ("by torch's dispatch", "by rules")  # the first call on a GPU compares the operators
Dtype = Literal[
    "f64",
    "f32",
    "f16",
    "bf16",
    "f8e4m3",
    "f8e5m2",
    "i64",
    "i32",
    "i16",
    "i8",
    "u8",
    "u16",
    "u32",
    "u64",
    "bool",
    "c64",
    "c128",
]
MemoryFormat = Literal["contiguous_format", "channels_last", "channels_last_3d", "preserve_format"]
Layout = Literal["strided"]
Place = Literal["main", "cpu"]  # a device inside arguments; main: the device of the step
NonFinite = Literal["inf", "-inf", "nan"]
Spelling = Literal[
    "dtype", "device", "layout", "memory_format", "float", "complex", "size", "number"
]  # for values without JSON literal
InputLeaf = Literal["tensor", "live"]
OutputLeaf = Literal["value"]
Container = Literal[
    "tuple", "list", "dict", "record", "literal"
]  # nodes of the trees of inputs and outputs, beside leaves

STOPPED_BY: tuple[StoppedBy, ...] = get_args(StoppedBy)
PAGE_MEMORIES: tuple[PageMemory, ...] = get_args(PageMemory)
GRADIENTS: tuple[Gradients, ...] = get_args(Gradients)
DEVICES: tuple[Device, ...] = get_args(Device)
DTYPE_NAMES: tuple[Dtype, ...] = get_args(Dtype)
MEMORY_FORMATS: tuple[MemoryFormat, ...] = get_args(MemoryFormat)
NON_FINITE: tuple[NonFinite, ...] = get_args(NonFinite)
SPELLINGS: tuple[Spelling, ...] = get_args(Spelling)
INPUT_LEAVES: tuple[InputLeaf, ...] = get_args(InputLeaf)
CONTAINERS: tuple[Container, ...] = get_args(Container)
# the words that each spelling takes; `complex` takes an array of two numbers instead, `size` an expression of named
# sizes, and `float` one, too; `number` one of live attributes
CHOICES: dict[Spelling, tuple[str, ...]] = {
    "dtype": DTYPE_NAMES,
    "device": get_args(Place),
    "layout": get_args(Layout),
    "memory_format": MEMORY_FORMATS,
    "float": NON_FINITE,
}
