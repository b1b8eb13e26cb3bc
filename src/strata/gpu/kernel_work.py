"""What a window's and a prompt's kernels must read and multiply at least: floors of their times.

Numbers only: no torch. Weights count as they lie on the card, by ``model_layout``; state and cells
by ``session_layout``. Activations are left out: they are small and stay in the second level cache.
So a kernel that is not named here has no floor but the time of a launch.

How bytes are counted, each once a window:

- A dense matrix: all its panels, whatever the number of rows.
- Routed experts: those that differ. ``n`` rows that choose ``k`` of ``E`` evenly meet
  ``E (1 - (1 - k/E)^n)`` of them; a trained router repeats itself more, so it reads less.
- The recurrent memory: read, and written, since the rows kept of the last window are stepped in.
- Cells: those one row attends to. Rows beside it may choose others, which is not counted.
- Index keys: all complete blocks, where there is a choice to make.

Multiplications are of 8-bit integers: weights times rows, experts once for every row that chose
them. Unpacking codes is not counted, so a grid format's real floor is higher.

For a chunk of a prompt the codes are first expanded to bytes: the products read a byte a weight,
all experts once, and the expansion reads what is stored and writes those bytes. Plain matrices have
no floor there, since their products are not of integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.gpu.prompt_layout import is_by_warps
from strata.gpu.session_layout import CELL_GROUP, most_selected
from strata.gpu.weight_layout import MAX_MATRICES
from strata.model_spec import LayerKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from strata.gpu.model_layout import HcLayout, ModelLayout
    from strata.gpu.weight_layout import Bundle
    from strata.model_spec import ModelSpec

# Of these pairs the first takes quantised matrices, the second plain ones.
PRODUCTS = ("_product_kernel", "_float_kernel")
READS = ("_read_kernel", "_read_float_kernel")  # up matrices of hyper-connections
BUNDLES = "_bundle_kernel"  # matrices of several formats that share an input
GATE_UP, DOWN = "_gate_up_kernel", "_down_kernel"  # of routed experts and the shared one
EXPERTS = "_entry_kernel"  # all three matrices, where gate and up differ in format
# Of these the first takes what ``prompt_layout.is_by_warps`` says, the second all else.
PROMPT_PRODUCTS = ("_grouped_warps_kernel", "_grouped_kernel")
PROMPT_GATE_UP = ("_gate_up_warps_kernel", "_gate_up_prompt_kernel")
EXPANSION = "_expand_kernel"
RECURRENCE = "_step_kernel"
ATTENTION = "_attention_part_kernel"
SCORES = "_score_kernel"


@dataclass(frozen=True, slots=True)
class Work:
    """Least work of a kernel, over all its launches of one window.

    Attributes:
        num_bytes: read from memory, and written there.
        num_products: multiplications of 8-bit integers.
    """

    num_bytes: float = 0.0
    num_products: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.num_bytes + other.num_bytes, self.num_products + other.num_products)


def window_work(
    layout: ModelLayout, spec: ModelSpec, *, num_rows: int, position: int, kv_format: str
) -> dict[str, Work]:
    """Work by kernel of a window with its head.

    Args:
        layout: of the model.
        spec: geometry.
        num_rows: 1 to 8.
        position: tokens before row 0.
        kv_format: "f16" or "int8".
    """
    kinds = spec.layer_kinds
    num_gdn = sum(kind is LayerKind.GDN for kind in kinds)
    num_qsa = len(kinds) - num_gdn
    ups = [hc.up for hc in _hcs(layout)]
    others = [bundle for bundle in layout.bundles if not any(bundle is up for up in ups)]
    mixed = [bundle for bundle in others if 2 <= len(bundle.launches) <= MAX_MATRICES]
    alone = [bundle for bundle in others if bundle not in mixed]
    work = {
        **_dense(ups, READS, num_rows),
        **_dense(alone, PRODUCTS, num_rows),
        BUNDLES: sum(_dense(mixed, PRODUCTS, num_rows).values(), start=Work()),
        **_experts(layout, spec, num_rows),
        RECURRENCE: Work(num_gdn * _recurrence_bytes(spec)),
        ATTENTION: Work(num_qsa * _cell_bytes(spec, position + num_rows, kv_format)),
        SCORES: Work(num_qsa * _index_bytes(spec, position + num_rows)),
    }
    return {name: item for name, item in work.items() if item.num_bytes}


def prompt_work(layout: ModelLayout, spec: ModelSpec, num_rows: int) -> dict[str, Work]:
    """Work by kernel of one chunk of a prompt; without the head, which reads one row.

    Args:
        layout: of the model.
        spec: geometry.
        num_rows: of the chunk, so many that every expert is chosen.
    """
    work = dict.fromkeys((*PROMPT_PRODUCTS, *PROMPT_GATE_UP, EXPANSION), Work())

    def add(kernels: tuple[str, str], formats: Sequence[str], size: tuple[int, ...]) -> None:
        """Matrices of ``size``, how many, rows and columns, each times so many rows of a prompt."""
        num, rows, inner, num_times = size
        weights = len(formats) * num * rows * inner
        name = kernels[0 if is_by_warps(formats, rows) else 1]
        products = len(formats) * rows * inner * num_times
        work[name] += Work(weights, products)
        work[EXPANSION] += Work(weights)

    for layer in layout.layers:
        for launch in (launch for bundle in layer.bundles for launch in bundle.launches):
            if not launch.is_float:
                size = (1, launch.num_rows, launch.inner, num_rows)
                add(PROMPT_PRODUCTS, (launch.format_name,), size)
                work[EXPANSION] += Work(launch.num_bytes)
        for experts, num_chosen in (
            (layer.experts, num_rows * spec.top_k),
            (layer.shared, num_rows),
        ):
            hidden, inner = experts.hidden_size, experts.expert_size
            add(PROMPT_GATE_UP, experts.formats[:2], (experts.num, inner, hidden, num_chosen))
            add(PROMPT_PRODUCTS, experts.formats[2:], (experts.num, hidden, inner, num_chosen))
            work[EXPANSION] += Work(experts.num * experts.blob_bytes)
    return {name: item for name, item in work.items() if item.num_bytes}


def distinct_experts(num_experts: int, top_k: int, num_rows: int) -> float:
    """Experts that ``num_rows`` rows meet, each choosing ``top_k`` evenly."""
    return num_experts * (1.0 - (1.0 - top_k / num_experts) ** num_rows)


def _hcs(layout: ModelLayout) -> Iterator[HcLayout]:
    for layer in layout.layers:
        yield from (layer.hc_attn, layer.hc_ffn)
    yield layout.final


def _dense(bundles: Sequence[Bundle], kernels: tuple[str, str], num_rows: int) -> dict[str, Work]:
    """Work of the kernel of quantised matrices, and of that of plain ones."""
    launches = [launch for bundle in bundles for launch in bundle.launches]
    quantised = [launch for launch in launches if not launch.is_float]
    products = num_rows * sum(
        part.num_rows * launch.inner for launch in quantised for part in launch.parts
    )
    return {
        kernels[0]: Work(sum(launch.num_bytes for launch in quantised), products),
        kernels[1]: Work(sum(launch.num_bytes for launch in launches if launch.is_float)),
    }


def _experts(layout: ModelLayout, spec: ModelSpec, num_rows: int) -> dict[str, Work]:
    work = dict.fromkeys((GATE_UP, DOWN, EXPERTS), Work())
    met = distinct_experts(spec.num_experts, spec.top_k, num_rows)
    for layer in layout.layers:
        both = (layer.experts, layer.shared)
        is_fused = all(experts.formats[0] == experts.formats[1] for experts in both)
        for experts, num_met, num_chosen in zip(
            both, (met, 1), (num_rows * spec.top_k, num_rows), strict=True
        ):
            weights = experts.hidden_size * experts.expert_size
            down = experts.down_bytes
            work[GATE_UP if is_fused else EXPERTS] += Work(
                num_met * (experts.blob_bytes - down), num_chosen * 2 * weights
            )
            work[DOWN if is_fused else EXPERTS] += Work(num_met * down, num_chosen * weights)
    return work


def _recurrence_bytes(spec: ModelSpec) -> int:
    """The memory read and written, and the convolution's weights; float32."""
    memory = spec.gdn_value_heads * spec.gdn_key_dim * spec.gdn_value_dim
    return 4 * (2 * memory + spec.gdn_conv_kernel * spec.gdn_conv_channels)


def _cell_bytes(spec: ModelSpec, num_cells: int, kv_format: str) -> int:
    """Keys and values of the cells that one row attends to."""
    values = 2 * spec.num_kv_heads * spec.head_dim * most_selected(spec, num_cells)
    return values * 2 if kv_format == "f16" else values + 2 * (values // CELL_GROUP)


def _index_bytes(spec: ModelSpec, num_cells: int) -> int:
    """Pooled keys that are scored, float32; none while every cell is taken."""
    blocks = num_cells // spec.index_block
    is_chosen = blocks > spec.index_budget // spec.index_block
    return 4 * blocks * spec.index_dim if is_chosen else 0
