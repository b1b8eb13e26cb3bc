"""Shapes of everything one conversation keeps on a card: state, and buffers of a decode window.

Numbers only: no torch. ``state`` and ``buffers`` allocate exactly this, ``memory_plan`` adds it up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.errors import PlanError
from strata.gpu.sampler_layout import sampler_shapes
from strata.gpu.shapes import Shape, Shapes
from strata.model_spec import LayerKind
from strata.session_rules import MAX_WINDOW_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from strata.gpu.model_layout import DraftLayout, LayerLayout, ModelLayout
    from strata.gpu.weight_layout import Bundle
    from strata.model_spec import ModelSpec

INDEX_GROUP = 64  # blocks side by side in the pooled keys
CELL_GROUP = 64  # codes of an int8 cell that share a scale
STEP_RING = 2 * MAX_WINDOW_ROWS
HEADER_BYTES = 16  # position int64, pending rows int32, before the rows of a window's input


def ring_rows(kernel: int, dilation: int = 1) -> int:
    """Rows of a ring that holds a full window and all it looks back on; a power of two."""
    return 1 << (MAX_WINDOW_ROWS + (kernel - 1) * dilation - 1).bit_length()


def gdn_shapes(spec: ModelSpec) -> Shapes:
    """What a gated delta net layer keeps; the names are those of ``GdnMemory``."""
    heads, key_dim, value_dim = spec.gdn_value_heads, spec.gdn_key_dim, spec.gdn_value_dim
    return {
        "memory": Shape((heads, key_dim, value_dim)),
        "ring": Shape((ring_rows(spec.gdn_conv_kernel), spec.gdn_conv_channels)),
        "keys": Shape((STEP_RING, heads, key_dim)),
        "values": Shape((STEP_RING, heads, value_dim)),
        "rates": Shape((STEP_RING, heads, 2)),
    }


def qsa_shapes(spec: ModelSpec, capacity: int, kv_format: str) -> Shapes:
    """What a sparse attention layer keeps: cells by position, index keys.

    Raises:
        PlanError: heads that int8 cells cannot have.
    """
    return cell_shapes(spec, capacity, kv_format) | {
        "ring": Shape((ring_rows(spec.index_block), spec.index_dim)),
        "pooled": Shape((num_index_groups(spec, capacity), spec.index_dim, INDEX_GROUP)),
    }


def cell_shapes(spec: ModelSpec, capacity: int, kv_format: str) -> Shapes:
    """Keys and values by position; the names are those of ``qsa_append.Cells``.

    Raises:
        PlanError: heads that int8 cells cannot have.
    """
    cells = (spec.num_kv_heads, capacity, spec.head_dim)
    if kv_format == "f16":
        return dict.fromkeys(("keys", "values"), Shape(cells, "float16"))
    if spec.head_dim % CELL_GROUP:
        raise PlanError(
            f"int8 keys and values need heads of a multiple of {CELL_GROUP} values; this model's "
            f"have {spec.head_dim}.\n  Try: --kv f16"
        )
    scales = Shape((*cells[:2], spec.head_dim // CELL_GROUP), "float16")
    return dict.fromkeys(("keys", "values"), Shape(cells, "int8")) | dict.fromkeys(
        ("key_scales", "value_scales"), scales
    )


def ple_shapes(spec: ModelSpec) -> Shapes:
    """What the n-gram memory keeps on the card."""
    if spec.ngram is None:
        return {}
    rows = ring_rows(spec.ngram.conv_kernel, spec.ngram.ngram_size)
    return {"ring": Shape((rows, spec.hyper_size))}


def state_shapes(spec: ModelSpec, capacity: int, kv_format: str) -> dict[str, Shapes]:
    """Everything kept between windows, by ``layer.N`` and ``ple``."""
    parts = {
        f"layer.{layer}": gdn_shapes(spec)
        if kind is LayerKind.GDN
        else qsa_shapes(spec, capacity, kv_format)
        for layer, kind in enumerate(spec.layer_kinds)
    }
    return parts | {"ple": ple_shapes(spec)}


def num_index_groups(spec: ModelSpec, capacity: int) -> int:
    """Groups of pooled keys of a conversation."""
    return -(-(capacity // spec.index_block + 1) // INDEX_GROUP)


def most_selected(spec: ModelSpec, capacity: int) -> int:
    """Most cells a row attends to."""
    return min(capacity, spec.index_budget + spec.index_block - 1)


def window_shapes(
    spec: ModelSpec, layout: ModelLayout, capacity: int, *, select_tile: int, part_cells: int
) -> Shapes:
    """Buffers of a window of eight rows; the same for every layer, the draft layer too.

    Args:
        spec: geometry.
        layout: how wide the bundles' outputs are.
        capacity: tokens of the conversation.
        select_tile: scores a program of the selection holds.
        part_cells: cells of one part of the attention.
    """
    n, hyper, hidden = MAX_WINDOW_ROWS, spec.hyper_size, spec.hidden_size
    layers = layout.layers
    blocks: list[LayerLayout | DraftLayout] = [*layers]
    if layout.draft is not None:
        blocks.append(layout.draft)

    def width(bundles: Iterable[Bundle]) -> int:
        return max((bundle.width for bundle in bundles), default=0)

    mixed = max(spec.gdn_value_size, spec.num_heads * spec.head_dim)
    hcs = [hc for block in blocks for hc in (block.hc_attn, block.hc_ffn)] + [layout.final]
    hcs += [] if layout.draft is None else [layout.draft.final]
    rows = {
        "streams": hyper, "xn": hyper, "xn_split": hyper, "x": hidden, "x_split": hidden,
        "out": hidden,
        "low_inject": width(hc.down_inject for hc in hcs), "low": spec.hc_rank,
        "projected": width(block.projections for block in blocks), "mixed": mixed,
        "routed": width(block.routers for block in blocks),
        "topk_weights": spec.top_k, "shared_weight": 1,
        "logits": spec.vocab_size,
    }  # fmt: skip
    shapes = {name: Shape((n, size)) for name, size in rows.items()}
    shapes["expert_ids"] = Shape((n, spec.top_k), "int32")
    shapes["shared_ids"] = Shape((n, 1), "int32")
    shapes |= sampler_shapes(spec.vocab_size, capacity)
    shapes |= expert_shapes("experts", n * spec.top_k, hidden, spec.expert_size)
    shapes |= expert_shapes("shared", n, hidden, spec.shared_expert_size)
    # A row each, so that all are aligned alike and one machine code serves every layer.
    shapes["flags"] = Shape((spec.num_layers + 1, 4), "int32")
    shapes["inputs"] = Shape((HEADER_BYTES + n * 4 * input_width(spec),), "uint8")
    if LayerKind.QSA in spec.layer_kinds:
        shapes |= _attention_shapes(spec, capacity, select_tile, part_cells)
    ples = [layer.ple for layer in layers if layer.ple is not None]
    if ples:
        shapes["ple"] = Shape((n, width(ples)))
        shapes |= dict.fromkeys(("ple_gated", "ple_inputs"), Shape((n, hyper)))
    for inner in code_sizes(spec):
        shapes |= codes_shapes(f"codes.{inner}", n, inner)
    return shapes


def ngram_width(spec: ModelSpec) -> int:
    """Values of the n-gram rows of one token."""
    return 0 if spec.ngram is None else spec.ngram.num_heads * spec.ngram.row_size


def input_width(spec: ModelSpec) -> int:
    """Values the host sends for one token: its embedding, its n-gram rows."""
    return spec.hidden_size + ngram_width(spec)


def _attention_shapes(spec: ModelSpec, capacity: int, tile: int, part_cells: int) -> Shapes:
    n, heads = MAX_WINDOW_ROWS, spec.num_heads
    pairs, scores = spec.rope.dim // 2, num_index_groups(spec, capacity) * INDEX_GROUP
    parts = -(-most_selected(spec, capacity) // part_cells)
    budget = spec.index_budget // spec.index_block
    return {
        "rope_cos": Shape((capacity, pairs)),
        "rope_sin": Shape((capacity, pairs)),
        "queries": Shape((n, heads, spec.head_dim)),
        "index_queries": Shape((n, spec.index_heads, spec.index_dim)),
        "scores": Shape((n, scores)),
        "candidates": Shape((2, n, -(-scores // tile) * budget), "int32"),
        "chosen": Shape((n, budget), "int32"),
        "part_values": Shape((n, parts, heads, spec.head_dim)),
        "part_sums": Shape((n, parts, heads, 2)),
    }


def code_sizes(spec: ModelSpec) -> tuple[int, ...]:
    """Widths of rows that may be needed as int8 codes, each once."""
    sizes = [spec.hyper_size, spec.hc_rank, spec.hidden_size]
    if LayerKind.GDN in spec.layer_kinds:
        sizes.append(spec.gdn_value_size)
    if LayerKind.QSA in spec.layer_kinds:
        sizes.append(spec.num_heads * spec.head_dim)
    if spec.ngram is not None:
        sizes.append(ngram_width(spec))
    return tuple(dict.fromkeys(size for size in sizes if size % 32 == 0))


def codes_shapes(name: str, num_rows: int, inner: int) -> Shapes:
    """Rows as int8 codes; the names end like the fields of ``kernels.quantize.Codes``."""
    groups = -(-inner // 256)
    return {
        f"{name}.codes": Shape((num_rows, 16, groups, 16), "int8"),
        f"{name}.scales": Shape((num_rows, groups, 8)),
        f"{name}.sums": Shape((num_rows, groups, 8), "int32"),
        f"{name}.scaled_sums": Shape((num_rows, groups, 8)),
        f"{name}.scaled_half_sums": Shape((num_rows, groups, 16)),
    }


def expert_shapes(name: str, num_entries: int, hidden_size: int, expert_size: int) -> Shapes:
    """What lies between the launches of some experts; ``kernels.experts.ExpertRows``."""
    return {
        f"{name}.gate_up": Shape((num_entries, 2 * expert_size)),
        f"{name}.y": Shape((num_entries, hidden_size)),
    } | codes_shapes(f"{name}.h", num_entries, expert_size)
