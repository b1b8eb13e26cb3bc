"""What a chunk's buffers take and where a prompt is cut: against the kernels' own numbers."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from strata.formats.naming import required_tensors  # noqa: E402
from strata.formats.synth import GEOMETRIES, MIXES, _plan, spec_of  # noqa: E402
from strata.gpu import prompt_layout  # noqa: E402
from strata.gpu.kernels import bf16_prompt, delta_scan, expand, expert_sort, index_prompt, indexer  # noqa: E402
from strata.gpu.kernels.prompt_codes import empty_prompt_codes  # noqa: E402
from strata.gpu.kernels.prompt_tilings import EXPERT_TILING, warp_options  # noqa: E402
from strata.gpu.memory_plan import MemoryPlan, Wishes, session_bytes, with_fitting_chunk  # noqa: E402
from strata.gpu.model_layout import model_layout  # noqa: E402
from strata.gpu.packing_fields import BLOCK_FORMATS  # noqa: E402
from strata.gpu.prompt_layout import (  # noqa: E402
    chunk_rows,
    expanded_bytes,
    is_by_warps,
    pieces_of,
    prompt_shapes,
)
from strata.units import GiB, MiB  # noqa: E402


@pytest.fixture(scope="module")
def coder():
    spec, _ = spec_of(GEOMETRIES["coder"])
    roles = required_tensors(spec)
    entries = {n: _plan(n, role, spec, MIXES["iq3_s"]) for n, role in roles.items()}
    return spec, model_layout(entries, spec)


def test_sizes_known_without_the_kernels_are_theirs() -> None:
    assert prompt_layout.CUT_TOKENS == delta_scan.CHUNK
    assert prompt_layout.SORT_PAIRS == expert_sort._CHUNK
    assert EXPERT_TILING.tile_tokens == prompt_layout.TILE_TOKENS
    assert prompt_layout.SCORE_ROWS == index_prompt._TILE_ROWS
    assert prompt_layout.SCORE_BYTES == index_prompt._SCORE_BYTES
    assert prompt_layout.SELECT_TILE == indexer.SELECT_TILE
    assert prompt_layout.BF16_PARTS == bf16_prompt.PARTS
    for name in BLOCK_FORMATS:
        for shape in ((1, 11, 512), (3, 640, 2560)):
            exact = expand.expanded_bytes(name, *shape)
            assert exact <= expanded_bytes(name, *shape) < exact + 256, name


def test_which_products_warps_make_is_known_without_the_kernels() -> None:
    for names in itertools.product(BLOCK_FORMATS, repeat=2):
        for num_rows, used in itertools.product((8, 10), (names[:1], names)):
            matrices = []
            for name in used:
                room = torch.empty(expand.expanded_bytes(name, 1, num_rows, 256), dtype=torch.uint8)
                matrices.append(expand.expanded_in(room, name, 1, num_rows, 256))
            codes = empty_prompt_codes(1, 256, "cpu")
            options = warp_options(EXPERT_TILING, codes, matrices)
            assert is_by_warps(used, num_rows) == (options is not None), (used, num_rows)


def test_buffers_of_a_large_model(coder) -> None:
    """Eight thousand rows beside the weights, and few enough for a card of 12 GB."""
    spec, layout = coder
    shapes = prompt_shapes(spec, layout, 32768, 8192)
    streams = 8192 * spec.hyper_size * 4
    assert shapes.kept["streams"].num_bytes == streams
    experts = 3 * spec.hidden_size * spec.expert_size * 256
    assert shapes.phases["moe"]["weights"].num_bytes >= 2 * experts // 3
    assert 2 * GiB < shapes.num_bytes < 2.5 * GiB
    assert prompt_shapes(spec, layout, 32768, 256).num_bytes < 300 * MiB
    # No more rows than the conversation has.
    small = prompt_shapes(spec, layout, 100, 8192)
    assert small.kept["x"].sizes[0] == chunk_rows(8192, 100) == 128


def test_a_chunk_is_halved_until_the_plan_fits(coder) -> None:
    spec, layout = coder
    wishes = Wishes(8192, "f16")
    plan = MemoryPlan({"weights": 0}, session_bytes(layout, spec, wishes), wishes)
    assert with_fitting_chunk(plan, layout, spec, plan.total_bytes) is plan
    fitting = with_fitting_chunk(plan, layout, spec, plan.total_bytes - 1)
    assert fitting.wishes.chunk == 4096
    assert fitting.total_bytes < plan.total_bytes
    assert with_fitting_chunk(plan, layout, spec, 0).wishes.chunk == 256


def test_whole_groups_are_read_in_chunks_and_the_rest_in_windows() -> None:
    for position, count, chunk in itertools.product(range(0, 200, 7), range(1, 300, 11), (64, 128)):
        pieces = pieces_of(position, count, chunk)
        assert sum(rows for rows, _ in pieces) == count
        way = {}
        at = position
        for rows, is_window in pieces:
            assert rows in (1, 2, 4, 8) if is_window else rows % 64 == 0 and rows <= chunk
            if not is_window:
                assert at // chunk == (at + rows - 1) // chunk
            way |= dict.fromkeys(range(at, at + rows), is_window)
            at += rows
        for token, is_window in way.items():
            group = range(token // 64 * 64, token // 64 * 64 + 64)
            assert is_window == (not all(other in way for other in group))


def test_a_cut_at_a_multiple_of_64_sends_no_token_another_way() -> None:
    def ways(position: int, count: int) -> list[bool]:
        return [
            is_window for rows, is_window in pieces_of(position, count, 128) for _ in range(rows)
        ]

    for position, end in ((0, 300), (41, 300), (50, 130), (64, 190)):
        whole = ways(position, end - position)
        for cut in range(-(-(position + 1) // 64) * 64, end, 64):
            assert ways(position, cut - position) + ways(cut, end - cut) == whole
