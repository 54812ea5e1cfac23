"""The row layout of matrices in oneDNN's recurrent layers. Does not require torch."""

_LINE = 64


def row_elements(elements: int, itemsize: int) -> int:
    """Return the elements from a row of a matrix to the next: whole cache lines, and no multiple of 256 elements.

    Args:
        elements: Elements of a row.
        itemsize: Bytes of an element. (oneDNN, `src/cpu/rnn/rnn_utils.hpp`)
    """
    line = _LINE // itemsize
    rounded = -(-elements // line) * line
    return rounded + line if rounded % 256 == 0 else rounded
