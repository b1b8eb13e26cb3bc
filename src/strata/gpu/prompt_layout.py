"""Shapes of the buffers of a prompt chunk, and where a prompt is cut. Numbers only: no torch.

The steps of a layer follow one another, so what only one of them uses lies in one place: ``phases``
share memory, ``kept`` do not. ``prompt_buffers`` allocates exactly this.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from strata.gpu.session_layout import (
    INDEX_GROUP,
    input_width,
    ngram_width,
    num_index_groups,
)
from strata.gpu.shapes import Shape, Shapes, total_bytes
from strata.model_spec import LayerKind
from strata.session_rules import MAX_WINDOW_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from strata.gpu.model_layout import ExpertsLayout, HcLayout, ModelLayout
    from strata.gpu.weight_layout import Bundle
    from strata.model_spec import ModelSpec

CUT_TOKENS = 64
"""A prompt may be cut at multiples of this; chunks of the delta net lie there."""

MAX_CHUNK, MIN_CHUNK = 8192, 256
"""Rows of a chunk: the most there is use for, and the fewest a plan short of room goes down to."""

# Those of ``expert_sort`` and of the experts' tiling, of ``index_prompt``, ``indexer`` and
# ``bf16_prompt``; they cannot be imported without triton.
SORT_PAIRS, TILE_TOKENS = 128, 32
SCORE_ROWS, SCORE_BYTES = 128, 64 << 20
SELECT_TILE = 8192
BF16_PARTS = 3
# Rows of the n-gram memory's convolution at a time.
NGRAM_ROWS = 1024
# Expanded experts held at a time: enough for a large chunk to have all of a layer at once.
_EXPERT_BYTES_A_ROW, _MIN_EXPERT_BYTES = 1 << 17, 1 << 27
# Planes of codes, scales and minima that ``kernels.expand`` makes of a block, where not 1, 1, 0.
_TWO_PLANES = ("Q6_K", "IQ2_XS", "IQ2_S", "IQ1_M", "NVFP4")
_TWO_SCALES = ("NVFP4",)
_MINIMA = {"Q4_1": 1, "Q5_1": 1, "Q4_K": 1, "Q5_K": 1, "Q2_K": 2}


@dataclass(frozen=True, slots=True)
class PromptShapes:
    """Buffers by name: those of their own, and by phase those that share memory."""

    kept: Shapes
    phases: dict[str, Shapes]

    @property
    def num_bytes(self) -> int:
        """Bytes of an arena that holds them."""
        largest = max((total_bytes(shapes.values()) for shapes in self.phases.values()), default=0)
        return total_bytes(self.kept.values()) + largest


def chunk_rows(chunk: int, capacity: int) -> int:
    """Rows the buffers need: no more than a conversation can hold."""
    return min(chunk, -(-capacity // CUT_TOKENS) * CUT_TOKENS)


def pieces_of(position: int, num_tokens: int, chunk: int) -> list[tuple[int, bool]]:
    """Rows of each step of a prompt, and whether the step is a decode window.

    Groups of ``CUT_TOKENS`` that the prompt fills are read in chunks, cut at multiples of ``chunk``
    in the conversation; the rest, at its beginning and end, in windows of 8, 4, 2 and 1 rows: a few
    rows are no work for a chunk's kernels, and no more kinds of windows than that are compiled. So
    which way a token takes depends on nothing but whether its group is read as a whole.
    """
    end = position + num_tokens
    first = min(-(-position // CUT_TOKENS) * CUT_TOKENS, end)
    last = max(end // CUT_TOKENS * CUT_TOKENS, first)
    cuts = [first, *range(first // chunk * chunk + chunk, last, chunk), last]
    chunks = [(after - before, False) for before, after in pairwise(cuts) if after > before]
    return [*_windows(first - position), *chunks, *_windows(end - last)]


def _windows(num_rows: int) -> list[tuple[int, bool]]:
    full, rest = divmod(num_rows, MAX_WINDOW_ROWS)
    sizes = [MAX_WINDOW_ROWS] * full + [size for size in (4, 2, 1) if rest & size]
    return [(size, True) for size in sizes]


def prompt_shapes(spec: ModelSpec, layout: ModelLayout, capacity: int, chunk: int) -> PromptShapes:
    """Buffers of a chunk of up to ``chunk`` rows; the same for every layer.

    Args:
        spec: geometry.
        layout: how wide the bundles' outputs are, and their formats.
        capacity: tokens of the conversation.
        chunk: rows, a multiple of ``CUT_TOKENS``.
    """
    n, hyper, hidden = chunk_rows(chunk, capacity), spec.hyper_size, spec.hidden_size
    layers = layout.layers
    hcs = [hc for layer in layers for hc in (layer.hc_attn, layer.hc_ffn)]
    kept = {
        "rows": Shape((n, input_width(spec))),
        "counted": Shape((n,), "int64"),
        "positions": Shape((n,), "int64"),
        "streams": Shape((n, hyper)),
        "inverse": Shape((n, spec.num_streams)),
        "inject": Shape((n, spec.num_streams)),
        "last": Shape((1, hyper)),
        "x": Shape((n, hidden)),
        "out": Shape((n, hidden)),
    } | codes_shapes("codes.x", n, hidden)
    stepwise = [hc for hc in hcs if not is_fused_read(hc, spec)]
    if stepwise:
        kept["xn"] = Shape((n, hyper))
    phases = {
        "read": _read_shapes(spec, stepwise, [hc for hc in hcs if is_fused_read(hc, spec)], n),
        "moe": _moe_shapes(spec, layout, n),
    }
    for kind, shapes in (
        (LayerKind.GDN, _gdn_shapes(spec, n)),
        (LayerKind.QSA, _qsa_shapes(spec, capacity, n)),
    ):
        own = [layer for layer in layers if layer.kind is kind]
        if own:
            shapes["projected"] = Shape((n, _width(layer.projections for layer in own)))
            shapes |= _weights(b for layer in own for b in (layer.projections, layer.out))
            phases[kind.value] = shapes
    ples = [layer.ple for layer in layers if layer.ple is not None]
    if ples:
        rows = Shape((min(n, NGRAM_ROWS), hyper))
        phases["ple"] = {"projected": Shape((n, _width(ples))), "gated": rows, "inputs": rows}
        phases["ple"] |= codes_shapes(f"codes.{ngram_width(spec)}", n, ngram_width(spec))
        phases["ple"] |= _weights(ples)
    return PromptShapes(kept, phases)


def codes_shapes(name: str, num_rows: int, inner: int) -> Shapes:
    """Rows as codes, as ``kernels.prompt_codes.PromptCodes`` has them; none if they cannot be."""
    if inner % 32:
        return {}
    blocks = inner // 32
    return {
        f"{name}.codes": Shape((num_rows, inner), "int8"),
        f"{name}.scales": Shape((num_rows, blocks)),
        f"{name}.scaled_sums": Shape((num_rows, blocks)),
        f"{name}.scaled_half_sums": Shape((num_rows, 2 * blocks)),
    }


def expanded_bytes(format_name: str, num_matrices: int, num_rows: int, inner: int) -> int:
    """Bytes of matrices as ``kernels.expand.expanded_in`` lays them, rounded up to 256."""
    planes = 2 if format_name in _TWO_PLANES else 1
    floats = 2 if format_name in _TWO_SCALES else 1
    floats += _MINIMA.get(format_name, 0)
    size = num_matrices * (num_rows * (inner // 32) * (32 * planes + 4 * floats) + 4)
    return -(-size // 256) * 256


def experts_at_a_time(experts: ExpertsLayout, num_rows: int) -> int:
    """Experts of a layer that are expanded together for a chunk of so many rows."""
    room = max(_MIN_EXPERT_BYTES, num_rows * _EXPERT_BYTES_A_ROW)
    return max(1, min(experts.num, room // expert_bytes(experts, 1)))


def expert_bytes(experts: ExpertsLayout, num: int) -> int:
    """Bytes of so many expanded experts: gate and up together, then down in their place."""
    hidden, size = experts.hidden_size, experts.expert_size
    gate, up, down = experts.formats
    both = sum(expanded_bytes(name, num, size, hidden) for name in (gate, up))
    return max(both, expanded_bytes(down, num, hidden, size))


def is_by_warps(formats: Sequence[str], num_rows: int) -> bool:
    """Whether ``kernels.prompt_warps`` multiplies matrices of these formats and so many rows.

    They share their input: one, or gate and up. All others are multiplied by ``prompt_tile``.
    """
    minima = {_MINIMA.get(name, 0) for name in formats}
    has_one_plane = all(name not in _TWO_PLANES for name in formats)
    return has_one_plane and minima in ({0}, {1}) and num_rows % 4 == 0


def is_split(format_name: str, inner: int) -> bool:
    """Whether a matrix's products are made from rows that are cut into bfloat16."""
    return format_name == "BF16" and inner % 32 == 0


def is_fused_read(hc: HcLayout, spec: ModelSpec) -> bool:
    """Whether ``kernels.read_prompt`` can do a read: BF16 matrices of whole blocks of 32."""
    return (
        all(
            len(bundle.launches) == 1 and is_split(bundle.launches[0].format_name, inner)
            for bundle, inner in ((hc.down_inject, spec.hidden_size), (hc.up, spec.hc_rank))
        )
        and spec.num_streams & (spec.num_streams - 1) == 0
    )


def _width(bundles: Iterable[Bundle]) -> int:
    return max((bundle.width for bundle in bundles), default=0)


def _weights(bundles: Iterable[Bundle]) -> Shapes:
    """Room for the largest expanded matrix of these, and for the largest BF16 one."""
    launches = [launch for bundle in bundles for launch in bundle.launches]
    sizes = [
        expanded_bytes(launch.format_name, 1, launch.num_rows, launch.inner)
        for launch in launches
        if not launch.is_float
    ]
    plain = [
        launch.num_rows * launch.inner
        for launch in launches
        if is_split(launch.format_name, launch.inner)
    ]
    shapes: Shapes = {"weights": Shape((max(sizes, default=0),), "uint8")}
    return shapes | ({"plain": Shape((max(plain),), "bfloat16")} if plain else {})


def _read_shapes(
    spec: ModelSpec, stepwise: list[HcLayout], fused: list[HcLayout], n: int
) -> Shapes:
    """Of reads that go step by step, and of those of ``kernels.read_prompt``."""
    hyper, rank = spec.hyper_size, spec.hc_rank
    shapes: Shapes = {}
    if stepwise:
        shapes = {
            "gate": Shape((n, hyper)),
            "low": Shape((n, rank)),
            "low_inject": Shape((n, _width(hc.down_inject for hc in stepwise))),
        }
        for size in (hyper, rank):
            shapes |= codes_shapes(f"codes.{size}", n, size)
        shapes |= _weights(b for hc in stepwise for b in (hc.down_inject, hc.up))
    if fused:
        width = max(hc.down_inject.launches[0].num_rows for hc in fused)
        room = max(width * hyper, *shapes.get("plain", Shape((0,))).sizes)
        shapes |= {
            "plain": Shape((room,), "bfloat16"),
            "sums": Shape((spec.num_streams, n, width)),
            "low_parts": Shape((BF16_PARTS, n, rank), "bfloat16"),
        }
    return shapes


def _gdn_shapes(spec: ModelSpec, n: int) -> Shapes:
    heads, key_heads, width = spec.gdn_value_heads, spec.gdn_key_heads, spec.gdn_value_size
    chunks = n // CUT_TOKENS + 2
    pairs = Shape((2, n, key_heads, spec.gdn_key_dim), "float16")
    squares = Shape((heads, chunks, 2, CUT_TOKENS, CUT_TOKENS), "float16")
    return {
        "queries": pairs,
        "keys": pairs,
        "values": Shape((n, heads, spec.gdn_value_dim)),
        "lower": Shape((heads, chunks, CUT_TOKENS, CUT_TOKENS)),
        "inverse": squares,
        "within": squares,
        "rates": Shape((3, heads, chunks, CUT_TOKENS)),
        "mixed": Shape((n, width)),
    } | codes_shapes(f"codes.{width}", n, width)


def _qsa_shapes(spec: ModelSpec, capacity: int, n: int) -> Shapes:
    heads, width = spec.num_heads, spec.num_heads * spec.head_dim
    scores = num_index_groups(spec, capacity) * INDEX_GROUP
    rows = min(max(SCORE_BYTES // (4 * scores) // SCORE_ROWS, 1), 8) * SCORE_ROWS
    budget = spec.index_budget // spec.index_block
    index = (n, spec.index_heads, spec.index_dim)
    return {
        "queries": Shape((n, heads, spec.head_dim)),
        "index_queries": Shape(index),
        "index_pairs": Shape((2, *index), "float16"),
        "scores": Shape((rows, scores)),
        "candidates": Shape((2, rows, -(-scores // SELECT_TILE) * budget), "int32"),
        "chosen": Shape((n, budget), "int32"),
        "mixed": Shape((n, width)),
    } | codes_shapes(f"codes.{width}", n, width)


def _moe_shapes(spec: ModelSpec, layout: ModelLayout, n: int) -> Shapes:
    hidden, pairs, num = spec.hidden_size, n * spec.top_k, spec.num_experts
    shapes = {
        "routed": Shape((n, _width(layer.routers for layer in layout.layers))),
        "expert_ids": Shape((n, spec.top_k), "int32"),
        "topk_weights": Shape((n, spec.top_k)),
        "shared_weight": Shape((n,)),
        "order": Shape((pairs,), "int32"),
        "counts": Shape((num,), "int32"),
        "offsets": Shape((num + 1,), "int32"),
        "tiles": Shape((pairs // TILE_TOKENS + min(num, pairs), 2), "int32"),
        "histogram": Shape((-(-pairs // SORT_PAIRS), num), "int32"),
        "outputs": Shape((pairs, hidden)),
    }
    shapes |= codes_shapes("hidden", pairs, spec.expert_size)
    shapes |= codes_shapes("shared_hidden", n, spec.shared_expert_size)
    experts = [layer.experts for layer in layout.layers]
    sizes = [expert_bytes(layer, experts_at_a_time(layer, n)) for layer in experts]
    sizes += [expert_bytes(layer.shared, 1) for layer in layout.layers]
    shapes |= _weights([layer.routers for layer in layout.layers])
    shapes["weights"] = Shape((max(*sizes, *shapes["weights"].sizes),), "uint8")
    return shapes
