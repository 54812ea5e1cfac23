"""Caps on what a schedule file may hold, so that an untrusted one costs bounded time and memory.

Each is far above what a real model needs: a 48-layer GPT-2 written flat has 9,000 operations in 3 MB.
"""

from __future__ import annotations

MAX_FILE_BYTES = 64 << 20
MAX_DEPTH = 64  # of nested arrays and objects in the text
MAX_BLOCK_DEPTH = 32  # of blocks inside blocks
MAX_NAME = 512  # characters of an id or name
MAX_TEXT = 1 << 16  # characters of any other text
MAX_OUTPUTS = 1 << 14  # of one operation
MAX_ELEMENTS = 1 << 20  # of one constant
MAX_OPERATIONS = 100_000  # after expansion, forward and backward; also instances
MAX_MODULES = 200_000  # paths of a digest, runs of numbers expanded
MAX_RANKS = 1 << 20  # of a mesh dimension
MAX_CALLS = 1 << 20  # of the modules that a file for parts is for, in one step
MAX_TILES = 65_536  # of an operation
MAX_RECOMPUTES = 250_000  # after expansion; also names in the plans that instances follow
# After expansion: arguments, outputs, and names of blocks that instances bind; those of recomputations too.
MAX_ITEMS = 1_000_000
MAX_EVENTS = 1_000_000  # runs, recomputations, and views that are computed again
MAX_PARAMETERS = 1 << 16  # of the model; also buffers, tied names, inputs and outputs
MAX_NAMESPACES = 1024
MAX_THREADS = 4096
MAX_INTEGER = (1 << 63) - 1
MAX_DIGITS = 64  # characters of a number
MAX_FAULTS = 100  # of one file; the search for faults ends there
# Contents that a text may have for its size, so that its objects take only a few times that: some, and one per so many
# bytes
MAX_BRACKETS = 1 << 16, 32  # arrays and objects
MAX_KEYS = 1 << 16, 32
MAX_COMMAS = 1 << 20, 12
MAX_TEXTS = 1 << 16, 12  # keys are texts, too
MAX_LIVE = 1 << 12  # attributes that are read at every call
# Sizes that follow from named dimensions
MAX_DIMS = 8
MAX_SIZE = 1 << 31  # of a named dimension
MAX_EXPRESSION = 256  # characters
MAX_EXPRESSIONS = 1 << 17  # characters of all different types and expressions that name sizes
MAX_TERMS = 16
MAX_DEGREE = 8
MAX_COEFFICIENT = 1 << 60  # also offsets and divisors
