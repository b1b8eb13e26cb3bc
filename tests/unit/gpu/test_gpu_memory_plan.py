"""The memory plan: against sums written down by hand, and what is said when it does not fit.

That what is planned is what is taken is tested where sessions are (tests/models).
"""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from strata.errors import PlanError, SettingsError, UnsupportedError
from strata.formats.block_formats import FORMATS
from strata.formats.naming import required_tensors
from strata.formats.synth import GEOMETRIES, MIXES, _plan, spec_of, uniform_mix
from strata.gpu import memory_plan, session_layout, weight_layout
from strata.gpu.build import _chunk
from strata.gpu.expert_slots import BlobLayout
from strata.gpu.kernels import attention, causal_conv, gated_delta, indexer, qsa_append
from strata.gpu.memory_plan import Wishes, check_plan, plan_memory
from strata.gpu.model_layout import model_layout
from strata.gpu.packing import panel_bytes
from strata.gpu.packing_fields import BLOCK_FORMATS
from strata.gpu.prompt_layout import MIN_CHUNK
from strata.settings import Settings
from strata.units import GiB, MiB


def entries_of(geometry, mix):
    """What a file of this geometry would hold, without writing it."""
    spec, _ = spec_of(geometry)
    plans = [_plan(name, role, spec, mix) for name, role in required_tensors(spec).items()]
    return spec, {plan.name: plan for plan in plans}


@pytest.fixture(scope="module")
def coder():
    spec, entries = entries_of(GEOMETRIES["coder"], MIXES["iq3_s"])
    return spec, entries, model_layout(entries, spec)


def test_sizes_known_without_the_kernels_are_theirs() -> None:
    for name in BLOCK_FORMATS:
        for inner in (256, 320, 640, 2560):
            if inner % FORMATS[name].block_size == 0:
                assert weight_layout.panel_bytes(name, inner) == panel_bytes(name, inner), name
    assert memory_plan.SELECT_TILE == indexer.SELECT_TILE
    assert attention._TILE_CELLS == memory_plan.PART_CELLS
    assert session_layout.STEP_RING == gated_delta.STEP_RING
    assert session_layout.INDEX_GROUP == indexer.INDEX_GROUP
    assert session_layout.CELL_GROUP == qsa_append.CELL_GROUP
    for kernel, dilation in ((2, 1), (4, 1), (4, 3), (9, 1), (1, 1)):
        ours = session_layout.ring_rows(kernel, dilation)
        assert ours == causal_conv.ring_rows(kernel, dilation)


def test_a_large_model_takes_what_its_file_takes(coder) -> None:
    spec, entries, layout = coder
    plan = plan_memory(entries, spec, Wishes(4096, "f16"))
    experts = layout.layers[5].experts
    blob = BlobLayout(experts.formats, experts.hidden_size, experts.expert_size)
    assert blob.blob_bytes == experts.blob_bytes
    in_file = {
        name: plan_.num_bytes
        for name, plan_ in entries.items()
        if name not in ("token_embd.weight", "per_layer_token_embd.weight")
    }
    routed = sum(size for name, size in in_file.items() if "_exps" in name)
    # Nothing is widened: what is more than the file fills up loads, panels and blobs.
    assert routed <= plan.weights["routed experts"] <= 1.01 * routed
    rest = sum(in_file.values()) - routed
    found = plan.weights["dense weights"] + plan.weights["shared experts"]
    assert rest <= found <= 1.02 * rest
    # 12 layers x 4,096 cells x 2 heads x 256 values x (key, value) x 2 bytes, and pooled keys.
    cells = 12 * 4096 * 2 * 256 * 2 * 2
    assert cells <= plan.session["keys and values"] <= 1.08 * cells
    memory = 36 * 48 * 128 * 128 * 4
    rings = 36 * 16 * 4 * (10240 + 2 * 48 * 128)  # inputs of the convolution, keys, values
    assert memory + rings <= plan.session["recurrent state"] <= 1.02 * (memory + rings)
    assert plan.total_bytes == sum(plan.weights.values()) + max(
        sum(plan.session.values()), memory_plan.LOADING_BYTES
    )
    assert "routed experts" in plan.table()
    assert len(plan.table().splitlines()) >= 7


def test_int8_cells_take_about_half(coder) -> None:
    spec, entries, _ = coder
    half, codes = (
        plan_memory(entries, spec, Wishes(65536, kv)).session["keys and values"]
        for kv in ("f16", "int8")
    )
    assert 0.5 < codes / half < 0.6


def test_a_refusal_names_three_ways_out_that_work(coder) -> None:
    spec, entries, layout = coder
    plan = plan_memory(entries, spec, Wishes(262_144, "f16", MIN_CHUNK))
    weights = sum(plan.weights.values())
    free = weights + 5 * GiB
    with pytest.raises(PlanError) as error:
        check_plan(plan, layout, spec, free_bytes=free, limit_bytes=None)
    text = str(error.value)
    assert "a conversation of 262144 tokens" in text
    assert "the card has free" in text
    assert "keys and values" in text
    ways = text.splitlines()[-1].removeprefix("  Try: ").split("; or ")
    assert len(ways) == 3
    assert ways[0] == "--kv int8"
    fits = int(ways[1].removeprefix("--context "))
    for capacity, kv_format in ((262_144, "int8"), (fits, "f16")):
        smaller = plan_memory(entries, spec, Wishes(capacity, kv_format, MIN_CHUNK))
        check_plan(smaller, layout, spec, free_bytes=free, limit_bytes=None)
    larger = plan_memory(entries, spec, Wishes(fits + 256, "f16", MIN_CHUNK))
    with pytest.raises(PlanError):
        check_plan(larger, layout, spec, free_bytes=free, limit_bytes=None)


def test_a_limit_is_a_cap_and_counts_the_driver(coder) -> None:
    spec, entries, layout = coder
    plan = plan_memory(entries, spec, Wishes(4096, "f16"))
    exact = plan.total_bytes + memory_plan.DRIVER_BYTES
    check_plan(plan, layout, spec, free_bytes=140 * GiB, limit_bytes=exact)
    with pytest.raises(PlanError, match="--vram-limit leaves") as error:
        check_plan(plan, layout, spec, free_bytes=140 * GiB, limit_bytes=exact - MiB)
    assert f"--vram-limit {-(-exact // MiB)}" in str(error.value)


def test_what_the_card_has_no_kernels_for_is_refused() -> None:
    spec, entries = entries_of(GEOMETRIES["tiny"], uniform_mix("BF16"))
    with pytest.raises(UnsupportedError, match="on a card experts must be quantised"):
        model_layout(entries, spec)
    spec, entries = entries_of(GEOMETRIES["tiny"], MIXES["q4_k"])
    scale = dataclasses.replace(entries["output.weight"], name="output.scale", shape=(1,))
    with pytest.raises(UnsupportedError, match=r"output.scale scales a matrix"):
        model_layout(entries | {"output.scale": scale}, spec)


@pytest.mark.parametrize(("wished", "nearest"), [(100, 128), (16384, 8192)])
def test_a_step_of_a_prompt_the_card_cannot_take_is_refused(wished: int, nearest: int) -> None:
    assert _chunk(Settings()) == 8192
    assert _chunk(Settings(chunk_tokens=192)) == 192
    with pytest.raises(SettingsError, match=f"not {wished}.\n.*--chunk {nearest}"):
        _chunk(Settings(chunk_tokens=wished))
