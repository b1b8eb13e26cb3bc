"""Shapes of what the draft layer keeps on a card beside one conversation. Numbers only: no torch.

Its launches use the buffers of a window, too; here is what they need besides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.gpu.session_layout import cell_shapes, codes_shapes
from strata.gpu.shapes import Shape, Shapes
from strata.session_rules import MAX_WINDOW_ROWS

if TYPE_CHECKING:
    from strata.model_spec import ModelSpec

# A window's streams, and those of as many positions before it that wait for their cells.
STREAM_RING = 2 * MAX_WINDOW_ROWS
MAX_DRAFTS = MAX_WINDOW_ROWS - 1
# Cells of a part of dense attention: ``attention``, which cannot be imported without triton.
DENSE_PART_CELLS = 1024
# Bytes of the input: the first new cell and the cell of each draft, 16 bytes each so that all are
# aligned alike; then the tokens of a window.
INPUT_BYTES = 16 * (1 + MAX_DRAFTS) + 4 * MAX_WINDOW_ROWS


def draft_shapes(spec: ModelSpec, capacity: int, kv_format: str) -> Shapes:
    """Cells, waiting streams and buffers.

    Args:
        spec: geometry.
        capacity: tokens of the conversation.
        kv_format: "f16" or "int8".

    Raises:
        PlanError: heads that int8 cells cannot have.
    """
    n, joined = MAX_WINDOW_ROWS, 2 * spec.hidden_size
    parts = -(-capacity // DENSE_PART_CELLS)
    shapes = cell_shapes(spec, capacity, kv_format) | {
        "ring": Shape((STREAM_RING, spec.hyper_size)),
        "embedded": Shape((n, spec.hidden_size)),
        "joined": Shape((n * spec.num_streams, joined)),
        "part_values": Shape((1, parts, spec.num_heads, spec.head_dim)),
        "part_sums": Shape((1, parts, spec.num_heads, 2)),
        "inputs": Shape((INPUT_BYTES,), "uint8"),
        # A row for each draft: id, probability as float32, whether a number was none.
        "drafts": Shape((MAX_DRAFTS, 4), "int32"),
    }
    return shapes | (codes_shapes("joined_codes", n, joined) if joined % 32 == 0 else {})
