"""Integer arithmetic of launches in plain Python: Triton's own takes the host microseconds."""


def cdiv(number: int, size: int) -> int:
    """How many pieces of ``size`` there are in ``number``, the last one maybe not whole."""
    return -(-number // size)


def next_power_of_2(number: int) -> int:
    """The least power of two that is not less than ``number``, which is at least 1."""
    return 1 << (number - 1).bit_length()
