"""Floors of a window's kernels: against the bytes of a file, and against sums worked by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.test_gpu_kernel_names import kernel_names

from strata.engine.accounting import WeightClass, token_bytes
from strata.formats.naming import required_tensors
from strata.formats.synth import GEOMETRIES, MIXES, _plan, spec_of
from strata.formats.tensor_index import TensorEntry
from strata.gpu import kernel_work
from strata.gpu.card_facts import Rates
from strata.gpu.kernel_work import Work, distinct_experts, prompt_work, window_work
from strata.gpu.model_layout import model_layout
from strata.gpu.probe import cost_of
from strata.gpu.profile import KernelTime, grouped

DENSE = (*kernel_work.PRODUCTS, *kernel_work.READS, kernel_work.BUNDLES)


@pytest.fixture(scope="module", params=["iq3_s", "q2_0"])
def coder(request: pytest.FixtureRequest):
    spec, _ = spec_of(GEOMETRIES["coder"])
    entries = {}
    for name, role in required_tensors(spec).items():
        plan = _plan(name, role, spec, MIXES[request.param])
        entries[name] = TensorEntry(name, plan.shape, plan.format, Path("x"), 0, plan.num_bytes)
    return spec, entries, model_layout(entries, spec)


def work_of(coder, rows: int, position: int, kv_format: str = "f16") -> dict[str, Work]:
    spec, _, layout = coder
    return window_work(layout, spec, num_rows=rows, position=position, kv_format=kv_format)


def experts_of(work: dict[str, Work]) -> Work:
    # Gate and up have one format in both mixes.
    assert kernel_work.EXPERTS not in work
    return work[kernel_work.GATE_UP] + work[kernel_work.DOWN]


def test_one_row_reads_what_the_file_has_for_a_token(coder) -> None:
    spec, entries, _ = coder
    work = work_of(coder, 1, 4095)
    stored = token_bytes(entries, spec, position=4095, kv_format="f16")
    experts = stored.weights[WeightClass.EXPERTS] + stored.weights[WeightClass.SHARED]
    # The shared router is counted with the shared expert there, with the matrices here.
    routers = sum(item.num_bytes for name, item in entries.items() if "gate_inp_shexp" in name)
    assert experts - routers <= experts_of(work).num_bytes <= 1.01 * experts
    host = (WeightClass.EMBEDDING, WeightClass.NGRAM_TABLE)
    dense = sum(size for kind, size in stored.weights.items() if kind not in host) - experts
    found = sum(work[name].num_bytes for name in DENSE if name in work)
    assert 0.98 * dense <= found <= 1.02 * dense  # norms are left out, panels are filled up
    cells = work[kernel_work.ATTENTION].num_bytes + work[kernel_work.SCORES].num_bytes
    assert cells == pytest.approx(stored.kv, rel=0.01)
    # The memory is written too; the weights of the convolution come on top.
    assert 2 * stored.state < work[kernel_work.RECURRENCE].num_bytes < 2.1 * stored.state


def test_rows_multiply_products_but_share_bytes(coder) -> None:
    one, four = work_of(coder, 1, 4096), work_of(coder, 4, 4096)
    for name in DENSE:
        if name in one:
            assert four[name].num_bytes == one[name].num_bytes
            assert four[name].num_products == 4 * one[name].num_products
    experts = experts_of(one), experts_of(four)
    assert experts[1].num_products == 4 * experts[0].num_products
    assert experts[0].num_bytes < experts[1].num_bytes < 4 * experts[0].num_bytes
    # 48 layers, 10 chosen and a shared one of the same size, three matrices of 2560 x 640.
    assert experts[0].num_products == 48 * 11 * 3 * 2560 * 640


def test_cells_by_hand(coder) -> None:
    # 12 layers, 2 heads of 256 values, key and value: all cells up to 2,051, in halves or in
    # bytes with a half for 64 of them.
    few, many = work_of(coder, 1, 99), work_of(coder, 1, 9999)
    assert few[kernel_work.ATTENTION].num_bytes == 12 * 100 * 2 * 256 * 2 * 2
    assert many[kernel_work.ATTENTION].num_bytes == 12 * 2051 * 2 * 256 * 2 * 2
    small = work_of(coder, 1, 99, "int8")
    assert small[kernel_work.ATTENTION].num_bytes == 12 * 100 * 2 * 2 * (256 + 2 * 256 // 64)
    # 512 of 2,500 blocks are chosen: keys of 128 float32 values; nothing to choose before.
    assert many[kernel_work.SCORES].num_bytes == 12 * 2500 * 128 * 4
    assert kernel_work.SCORES not in few


def test_a_prompt_s_chunk_by_hand(coder) -> None:
    spec, entries, layout = coder
    work = prompt_work(layout, spec, 1000)
    # 48 layers, 256 experts and a shared one, each 2560 x 640; ten chosen, and the shared one.
    matrix = 2560 * 640
    gate_up = sum((work.get(name, Work()) for name in kernel_work.PROMPT_GATE_UP), start=Work())
    assert gate_up.num_bytes == 48 * 257 * 2 * matrix
    assert gate_up.num_products == 48 * 1000 * 11 * 2 * matrix
    down = (48 * 257 * matrix, 48 * 1000 * 11 * matrix)
    dense = sum(
        int(np.prod(item.shape))
        for name, item in entries.items()
        if "blk." in name and "exp" not in name and item.format.name not in ("F32", "F16", "BF16")
    )
    products = sum((work.get(name, Work()) for name in kernel_work.PROMPT_PRODUCTS), start=Work())
    assert products.num_bytes == down[0] + dense
    assert products.num_products == down[1] + 1000 * dense
    # Every quantised byte of the layers is read once, and each of its weights written as a byte.
    written = gate_up.num_bytes + products.num_bytes
    stored = sum(
        item.num_bytes
        for name, item in entries.items()
        if "blk." in name and item.format.name not in ("F32", "F16", "BF16")
    )
    assert stored <= work[kernel_work.EXPANSION].num_bytes - written <= 1.02 * stored


def test_matrices_that_warps_refuse_count_for_the_other_kernel(coder) -> None:
    spec, _, layout = coder
    by_warps, refused = (
        prompt_work(_with_shared(layout, formats), spec, 1000)
        for formats in (("Q8_0",) * 3, ("Q8_0", "Q6_K", "Q6_K"))
    )
    matrix = 48 * 2560 * 640
    for names, num in ((kernel_work.PROMPT_GATE_UP, 2), (kernel_work.PROMPT_PRODUCTS, 1)):
        added = Work(num * matrix, 1000 * num * matrix)
        assert refused[names[1]] == by_warps.get(names[1], Work()) + added
        assert refused[names[0]] + added == by_warps[names[0]]


def _with_shared(layout, formats):
    """The same with shared experts of these formats."""
    layers = [
        replace(layer, shared=replace(layer.shared, formats=formats)) for layer in layout.layers
    ]
    return replace(layout, layers=tuple(layers))


def test_distinct_experts_are_those_of_even_choices() -> None:
    assert distinct_experts(256, 10, 1) == pytest.approx(10)
    # All pairs of two rows that choose two of four: 2, 3 or 4 distinct ones.
    pairs = list(itertools.product(itertools.combinations(range(4), 2), repeat=2))
    assert distinct_experts(4, 2, 2) == pytest.approx(np.mean([len({*a, *b}) for a, b in pairs]))


def test_every_floor_belongs_to_a_kernel() -> None:
    constants = {
        name
        for value in vars(kernel_work).values()
        for name in (value if isinstance(value, tuple) else (value,))
        if isinstance(name, str) and name.endswith("_kernel")
    }
    assert len(constants) >= 8
    assert constants <= set(kernel_names())


def test_floors_become_seconds() -> None:
    rates = Rates(copy_bytes_per_s=4e12, dot_products_per_s=5e13, tensor_products_per_s=1e15)
    time = KernelTime("_product_kernel", 3, 2e-3)
    bound_by_memory = cost_of(time, Work(4e9, 1e10), rates)
    assert (bound_by_memory.floor_s, bound_by_memory.bound) == (1e-3, "memory")
    bound_by_products = cost_of(time, Work(4e9, 1e11), rates)
    assert (bound_by_products.floor_s, bound_by_products.bound) == (2e-3, "products")
    assert cost_of(time, None, rates).floor_s is None


def test_launches_are_grouped_by_name() -> None:
    events = [("a", 2.0), ("b", 10.0), ("a", 4.0), ("b", 10.0)]
    found = grouped(events, repeats=2)
    assert [(item.name, item.calls) for item in found] == [("b", 1), ("a", 1)]
    assert [item.seconds for item in found] == pytest.approx([1e-5, 3e-6])
