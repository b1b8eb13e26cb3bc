"""Single PTX instructions in numpy, for kernels that run in Triton's interpreter.

A compiled kernel never reaches these: the branch is decided by ``arith.INTERPRETED``. Written apart
from the kernels' use of the instructions, after the description in NVIDIA's PTX manual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Programs run one after another, so one memory is each one's own.
_SHARED = np.full(1 << 20, np.nan, np.float32)


def _words(*operands: Any) -> list[NDArray[np.int32]]:
    arrays = np.broadcast_arrays(*(np.asarray(x.handle.data, np.int32) for x in operands))
    return [np.ascontiguousarray(x) for x in arrays]


def _tensor(like: Any, data: NDArray[np.int32]) -> Any:
    return tl.core.tensor(TensorHandle(data.astype(np.int32), tl.int32), like.type)


def dp4a(a: Any, b: Any, acc: Any) -> Any:
    """acc + sum of the products of four signed bytes: ``dp4a.s32.s32``."""
    a_words, b_words, sums = _words(a, b, acc)
    shape = (*a_words.shape, 4)
    products = a_words.view(np.int8).reshape(shape).astype(np.int32) * b_words.view(
        np.int8
    ).reshape(shape)
    return _tensor(a, sums + products.sum(axis=-1, dtype=np.int32))


def prmt(low: Any, high: Any, selector: Any) -> Any:
    """Four bytes picked from the eight of high:low by nibbles of the selector: ``prmt.b32``.

    Bit 3 of a nibble copies the sign of the byte picked.
    """
    low_words, high_words, select = _words(low, high, selector)
    shape = (*low_words.shape, 4)
    source = [x.view(np.uint8).reshape(shape) for x in (low_words, high_words)]
    nibbles = select[..., None] >> 4 * np.arange(4) & 15
    picked = np.take_along_axis(np.concatenate(source, axis=-1), nibbles & 7, axis=-1)
    copied = np.where(picked & 128, 255, 0)
    result = np.where(nibbles & 8, copied, picked).astype(np.uint8)
    return _tensor(low, np.ascontiguousarray(result).view(np.int32).reshape(low_words.shape))


def from_lane(x: Any, lane: Any) -> Any:
    """``x`` of another thread of the same 32: ``shfl.sync.idx.b32``."""
    values, lanes = np.broadcast_arrays(x.handle.data, lane.handle.data)
    place = np.arange(values.size)
    data = values.reshape(-1)[place // 32 * 32 + lanes.reshape(-1) % 32].reshape(values.shape)
    return tl.core.tensor(TensorHandle(data.copy(), x.dtype), x.type)


def multiply_words(*operands: Any) -> tuple[Any, ...]:
    """``mma.sync.m16n8k32`` of signed bytes: ten words a thread (a, b, c) to four, warp by warp."""
    *words, c0, c1, c2, c3 = (x.reshape(-1, 8, 4) for x in _words(*operands))
    rows = [x.view(np.int8).reshape(len(x), 8, 16).astype(np.int32) for x in words]
    low, low_next, high, high_next, column, column_next = rows
    a = np.concatenate([np.concatenate(r, 2) for r in ((low, high), (low_next, high_next))], 1)
    b = np.concatenate([column, column_next], 2)
    c = (a @ b.transpose(0, 2, 1)).reshape(-1, 2, 8, 4, 2)  # warp, half of rows, g, t, column
    sums = (
        c[:, 0, :, :, 0] + c0,
        c[:, 0, :, :, 1] + c1,
        c[:, 1, :, :, 0] + c2,
        c[:, 1, :, :, 1] + c3,
    )
    like = operands[0]
    return tuple(_tensor(like, x.reshape(like.handle.data.shape)) for x in sums)


def shared_words(NUM: Any) -> int:
    """Address of words of shared memory. Nothing that was there before can be read."""
    _SHARED[: int(NUM)] = np.nan
    return 0


def store_shared(at: Any, value: Any) -> None:
    """``st.shared.b32`` of float32."""
    places, values = np.broadcast_arrays(at.handle.data, value.handle.data)
    _SHARED[places // 4] = values


def load_shared(at: Any) -> Any:
    """``ld.shared.b32`` of float32."""
    return tl.core.tensor(
        TensorHandle(_SHARED[at.handle.data // 4], tl.float32),
        tl.block_type(tl.float32, at.type.shape),
    )


def load_some(at: Any, NUM: Any, OFFSET: Any) -> tuple[Any, ...]:
    """``ld.shared.v2.b32`` and its like: NUM words side by side, int32."""
    first = (at.handle.data + int(OFFSET)) // 4
    words = _SHARED.view(np.int32)
    return tuple(_tensor(at, words[first + i]) for i in range(int(NUM)))


def load_rows(at: Any, OFFSET: Any) -> tuple[Any, ...]:
    """``ldmatrix.m8n8.x4``: of each eight lanes' rows of 16 bytes, a word for every lane."""
    rows = ((at.handle.data + int(OFFSET)) // 4).reshape(-1, 4, 8)
    lane = np.arange(32)
    words = _SHARED.view(np.int32)
    return tuple(_tensor(at, words[rows[:, i, lane // 4] + lane % 4].reshape(-1)) for i in range(4))
