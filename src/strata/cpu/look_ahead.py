"""Experts read from a disk before they are asked for: how many, and the routers that name them.

Owns what is wished for and how the routers are packed; the guess and the reads are the extension's
(``native/ahead_reads``, docs/decisions/0017-look-ahead.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from strata import _native
from strata.formats.block_formats import FORMATS
from strata.formats.naming import Role, tensor_name
from strata.formats.quantize import quantize

if TYPE_CHECKING:
    from strata._native import Context, Matrix
    from strata.formats.model_tensors import ModelTensors
    from strata.model_spec import ModelSpec

# Experts that are read ahead at once, at most: a layer's guesses that are in no memory, and some of
# the layer before that were wrong and are on their way still.
_MOST_PLACES = 16
# Part of the cache's room that they may take; a smaller cache has none.
_PART = 8
_ROUTER_FORMAT = FORMATS["Q8_0"]


class LookAhead(NamedTuple):
    """What is read ahead.

    Attributes:
        num_places: experts that there is room for.
        top_k: that are guessed for each row of a window.
    """

    num_places: int
    top_k: int


NO_LOOK_AHEAD = LookAhead(0, 0)


class AheadCounts(NamedTuple):
    """What became of reads that nobody had asked for. Some may be neither used nor given up yet.

    Attributes:
        begun: all of them.
        used: taken when their expert was asked for; they are among the experts that were read.
        dropped: given up, or found wrong.
        dropped_bytes: that were read for the latter.
    """

    begun: int
    used: int
    dropped: int
    dropped_bytes: int


def look_ahead_of(num_places: int, spec: ModelSpec) -> LookAhead:
    """What is read ahead where cache and reads together have so much room."""
    num = min(_MOST_PLACES, num_places // _PART)
    if spec.hidden_size % _ROUTER_FORMAT.block_size or not num:
        return NO_LOOK_AHEAD
    return LookAhead(num, spec.top_k)


def router_bytes(spec: ModelSpec) -> int:
    """Memory of the routers that guess."""
    return spec.num_layers * spec.num_experts * _ROUTER_FORMAT.row_bytes(spec.hidden_size)


def packed_router(ctx: Context, layer: int, tensors: ModelTensors) -> Matrix | None:
    """A layer's router in blocks of eight bits, for guesses; None where the file has none.

    Raises:
        CheckpointError: it holds NaN or infinity.
    """
    name = tensor_name(Role.ROUTER, layer)
    if name not in tensors.index:
        return None
    tensors.raw(name)  # refuses what is not finite
    raw = quantize(_ROUTER_FORMAT, tensors.index.array(name))
    return _native.Matrix.pack(ctx, _ROUTER_FORMAT.ggml_id, raw, tensors.index[name].shape[-1])
