"""Shapes of what picks tokens on a card. Numbers only: no torch.

Constants are those of ``kernels.argmax`` and ``kernels.sampling``, which cannot be imported without
triton.
"""

from __future__ import annotations

from strata.gpu.shapes import Shape, Shapes
from strata.session_rules import MAX_WINDOW_ROWS

ARGMAX_TILE = 4096
SAMPLE_BLOCK = 64
MAX_CANDIDATES = 64
# Bytes of the options: six float64, four int64 from 64 on, the ids of a window's rows from 128 on.
OPTION_BYTES = 128 + 4 * MAX_WINDOW_ROWS


def argmax_shapes(num_rows: int, vocab_size: int) -> Shapes:
    """Scratch of ``kernels.argmax`` for so many rows."""
    parts = -(-vocab_size // ARGMAX_TILE)
    return {
        "argmax_best": Shape((num_rows, parts), "int64"),
        "argmax_sums": Shape((num_rows, parts)),
    }


def sampler_shapes(vocab_size: int, capacity: int) -> Shapes:
    """Everything a window's picks need besides its logits.

    Args:
        vocab_size: V.
        capacity: tokens of the conversation.
    """
    n = MAX_WINDOW_ROWS
    return argmax_shapes(n, vocab_size) | {
        "picked_ids": Shape((n,), "int32"),
        "picked_probs": Shape((n,)),
        "pick_options": Shape((OPTION_BYTES,), "uint8"),
        "pick_tokens": Shape((capacity,), "int32"),
        "pick_mask": Shape((n, -(-vocab_size // 32)), "int32"),
        "pick_maxima": Shape((n, -(-vocab_size // SAMPLE_BLOCK)), "int32"),
        "pick_ints": Shape((n, 3, MAX_CANDIDATES), "int32"),
        "pick_reals": Shape((n, 3, MAX_CANDIDATES), "float64"),
    }
