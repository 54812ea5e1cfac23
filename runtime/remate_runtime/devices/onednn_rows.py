"""How oneDNN lays rows of matrices behind each other in recurrent layers. Needs no torch."""

_LINE = 64


def row_elements(elements: int, itemsize: int) -> int:
    """Elements from one row of a matrix to the next: whole cache lines, and no multiple of 256 elements.

    itemsize: bytes of an element. (oneDNN, `src/cpu/rnn/rnn_utils.hpp`)"""
    line = _LINE // itemsize
    rounded = -(-elements // line) * line
    return rounded + line if rounded % 256 == 0 else rounded
