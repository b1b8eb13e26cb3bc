"""Metadata values to GGUF bytes: which type number each Python or numpy value gets.

The inverse of the value reader in gguf; gguf_writer puts the bytes into a file.
"""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from strata.errors import CheckpointError
from strata.formats.gguf import ARRAY_TYPE, SCALAR_DTYPES, STRING_TYPE, MetadataValue

_TYPE_IDS = {np.dtype(code): type_id for type_id, code in SCALAR_DTYPES.items()}


def encode_string(text: str) -> bytes:
    """Length and UTF-8 bytes of a string.

    Raises:
        CheckpointError: the string has no UTF-8 form (a lone surrogate, as JSON may hold).
    """
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise CheckpointError(f"no UTF-8 form of the metadata text {text!a:.200}.") from None
    return struct.pack("<Q", len(raw)) + raw


def encode_value(value: MetadataValue) -> bytes:
    """Type number and bytes of a metadata value.

    numpy scalars and arrays keep their type. Python's: str; bool; float to f32; int to u32, or i32
    if negative, or 64 bits if it must; lists likewise, integers as i32 where they fit.

    Raises:
        CheckpointError: no GGUF type holds the value.
    """
    if isinstance(value, str):
        return struct.pack("<I", STRING_TYPE) + encode_string(value)
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        head = struct.pack("<IIQ", ARRAY_TYPE, STRING_TYPE, len(value))
        return head + b"".join(map(encode_string, value))
    array = _typed(value)
    type_id = _TYPE_IDS.get(array.dtype.newbyteorder("<"))
    if type_id is None or array.ndim > 1:
        raise CheckpointError(f"no GGUF metadata type holds {value!r:.200}.")
    raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
    if array.ndim == 0:
        return struct.pack("<I", type_id) + raw
    return struct.pack("<IIQ", ARRAY_TYPE, type_id, array.size) + raw


def _typed(value: MetadataValue) -> npt.NDArray[Any]:
    """The value as an array of the dtype it shall have in the file."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    items = value if isinstance(value, list | tuple) else [value]
    if all(isinstance(item, bool) for item in items) and items:
        return np.array(value, np.bool_)
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        preferred = ["i4"] if isinstance(value, list | tuple) else ["u4", "i4"]
        for code in (*preferred, "u8", "i8"):
            bounds = np.iinfo(code)
            if all(bounds.min <= item <= bounds.max for item in items):
                return np.array(value, code)
    elif all(isinstance(item, int | float) and not isinstance(item, bool) for item in items):
        return np.array(value, np.float32)
    raise CheckpointError(f"no GGUF metadata type holds {value!r:.200}.")
